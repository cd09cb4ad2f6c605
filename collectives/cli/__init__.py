"""``python -m collectives``: the commands."""
