"""How much a rank keeps between forward and backward passes."""

from __future__ import annotations

__all__ = ["Activations"]


class Activations:
    """The activations of all stages of a rank: ``nbytes`` and ``count`` (one for each micro-batch and stage) that are
    kept now, ``peak_bytes`` and ``peak_count``, the most at once since `reset`."""

    def __init__(self) -> None:
        self.nbytes = self.count = 0
        self.reset()

    def reset(self) -> None:
        """Count the peaks anew."""
        self.peak_bytes, self.peak_count = self.nbytes, self.count

    def change(self, nbytes: int, count: int = 0) -> None:
        """Note that so much more is kept, or less."""
        self.nbytes += nbytes
        self.count += count
        self.peak_bytes, self.peak_count = max(self.peak_bytes, self.nbytes), max(self.peak_count, self.count)
