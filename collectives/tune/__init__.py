"""``python -m collectives tune``: measures on this machine and writes a selection table for the library."""
