"""What ranks say of their calls, how they ask each other, and what the answers mean."""
