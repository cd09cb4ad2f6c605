"""No communication: every rank trains alone, on its own samples. This is the control of an experiment."""

from .base import Strategy
from .pattern import Pattern, apart


class NoComm(Strategy):
    """Each rank trains its own network, from the same initial parameters, without any communication in training."""

    sends_parameters = False
    on_device = True

    @property
    def instead(self) -> str | None:
        """None: gradients are this rank's own. See `Strategy.instead`."""
        return None

    def pattern(self, size: int) -> Pattern:
        """Nothing is sent."""
        return apart()
