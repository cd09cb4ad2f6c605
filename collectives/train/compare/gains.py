"""How much faster strategies go on than synchronous training where ranks are slow: measured, and at the most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..cli.choice import Choice
from .pace import Pace
from .report import Row

SYNCHRONOUS = "allreduce"


class Gain(NamedTuple):
    """The samples per second of a strategy, divided by those of synchronous training.

    ``ideal`` is what it would be if none of its ranks waited for anything. ``staleness`` is the number of steps by
    which a rank may be ahead of others: 0 if ranks wait for each other, infinite if nobody waits.
    """

    label: str
    measured: float
    ideal: float
    staleness: float

    @property
    def text(self) -> str:
        """A line for people."""
        return (
            f"{self.label}: {self.measured:.2f} times the samples per second of {SYNCHRONOUS}; "
            f"{self.ideal:.2f} if nobody ever waited"
        )


def gains(choices: Sequence[Choice], rows: Mapping[str, Row], pace: Pace, batch: int, size: int) -> list[Gain]:
    """A gain for each strategy on `size` ranks, but for synchronous training itself.

    None if no rank is slow or disturbed, or without synchronous training. A strategy that does not say who waits for
    whom has none either.
    """
    if SYNCHRONOUS not in rows or not (pace.stragglers or pace.jitter):
        return []
    together = pace.rate(range(size), batch, together=True)
    found = []
    for choice in choices:
        label = str(choice)
        workers, staleness = _waits(choice, size)
        if workers and label != SYNCHRONOUS:
            measured = rows[label].efficiency / rows[SYNCHRONOUS].efficiency
            found.append(Gain(label, measured, pace.rate(workers, batch, together=False) / together, staleness))
    return found


def _waits(choice: Choice, size: int) -> tuple[list[int], float]:
    """The ranks that train, and the staleness of their steps; no ranks if the strategy does not say."""
    strategy = choice.make()
    try:
        pattern = strategy.pattern(size)
    except NotImplementedError:
        return [], 0.0
    if strategy.lockstep:
        return pattern.workers(size), 0.0
    return pattern.workers(size), pattern.staleness if pattern.servers else math.inf
