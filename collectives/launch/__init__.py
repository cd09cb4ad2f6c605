"""How a command begins and ends on all ranks, and the command ``run``."""
