"""The start and the end of a command on all ranks, and the command ``run``."""
