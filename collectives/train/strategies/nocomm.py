"""No communication: every rank trains alone, on its own samples. This is the control of an experiment."""

from .base import Strategy


class NoComm(Strategy):
    """Each rank trains its own network, from the same initial parameters, without any communication in training."""

    sends_parameters = False
