"""No communication: every rank trains alone, on its own samples. The control of an experiment."""

from .base import Strategy


class NoComm(Strategy):
    """Each rank trains its own network, from the same initial parameters, and never hears of the others."""
