"""The algorithm that a simulation names as the best for a call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..schedules.build import build
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Kind

__all__ = ["EQUAL", "changes", "winner"]

#: Simulated times whose ratio is below this are equal: the parameters of a network are not known better.
EQUAL = 1.01


def changes(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> int:
    """How often rank ``root`` sends to another rank than before, in one call on ``size`` ranks: never in a ring."""
    steps = build(algorithm, root, size, root).steps
    peers = steps["peer"][steps["kind"] == Kind.SEND]
    return int(np.count_nonzero(peers[1:] != peers[:-1]))


def winner(seconds: Sequence[float], changes: Sequence[int]) -> int:
    """Index of the least of the times; of equal ones, the index of the one with the fewest changes of partner.

    At a change two ranks wait for each other anew, over a connection whose rate has to build up. The LogGP model knows
    of neither, so it finds a ring, circulant and recursive halving equally fast on long vectors.
    """
    least = min(seconds)
    equal = [i for i, time in enumerate(seconds) if time <= EQUAL * least]
    return min(equal, key=lambda i: (changes[i], seconds[i]))
