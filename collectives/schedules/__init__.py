"""What every rank does, as data: peer arithmetic, rounds and steps, algorithms by name."""
