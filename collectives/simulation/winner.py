"""The algorithm that a simulation names as the best for a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..schedules.build import build
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Kind

__all__ = ["EQUAL", "partners", "winner"]

#: Simulated times whose ratio is below this are equal: the parameters of a network are not known better.
EQUAL = 1.01


def partners(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> int:
    """Number of ranks with which rank ``root`` exchanges messages in one call on ``size`` ranks."""
    steps = build(algorithm, root, size, root).steps
    moves = np.isin(steps["kind"], [kind.value for kind in (Kind.SEND, Kind.RECV, Kind.RECV_REDUCE)])
    return len(np.unique(steps["peer"][moves]))


def winner(seconds: Sequence[float], partners: Sequence[int]) -> int:
    """Index of the least of the times; of equal ones, the index of the one with the fewest partners.

    Each partner is a connection of its own, whose rate has to build up, and each change of partner is a point where two
    ranks wait for each other. The LogGP model knows of neither, so it finds a ring, circulant graphs and recursive
    halving equally fast on long vectors.
    """
    least = min(seconds)
    equal = [i for i, time in enumerate(seconds) if time <= EQUAL * least]
    return min(equal, key=lambda i: (partners[i], seconds[i]))
