"""Computation that is emulated: a rank sleeps for as long as its samples would take."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ..random_streams import Random


class Pace(NamedTuple):
    """How long computation takes. The part of a rank, `samples` samples, takes `seconds`.

    Rank r takes ``stragglers[r]`` times as long, and each step has a random part, exponentially distributed with a mean
    of `jitter` seconds.
    """

    seconds: float
    samples: float
    stragglers: Mapping[int, float]
    jitter: float

    def alone(self) -> Pace:
        """That of one process, which is neither slower than others nor disturbed."""
        return self._replace(stragglers={}, jitter=0.0)

    def of(self, rank: int, seed: int) -> Sleeper:
        """That of a rank in the training with this seed."""
        return Sleeper(self, rank, Random(seed, "pace", rank))


@dataclass
class Sleeper:
    """The pace of one rank. Sleeps that took too long are made up for by those that follow."""

    pace: Pace
    rank: int
    random: Random
    _late: float = field(default=0.0, init=False)  # seconds by which sleeps were too long

    def sleep(self, samples: int) -> None:
        """Sleep for as long as the computation of `samples` samples takes."""
        wanted = self.pace.seconds * samples / self.pace.samples * self.pace.stragglers.get(self.rank, 1.0)
        if self.pace.jitter:
            wanted += float(self.random.generator.exponential(self.pace.jitter))
        begin = time.perf_counter()
        time.sleep(max(0.0, wanted - self._late))
        self._late += time.perf_counter() - begin - wanted
