"""Computation that is emulated: a rank sleeps for as long as its samples would take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..random_streams import Random

DRAWS = 20_000  # of the slowest rank's time, for its mean


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

    def rate(self, ranks: Sequence[int], batch: float, together: bool) -> float:
        """Samples per second of `ranks`, which share a batch, if nothing but computation takes time.

        They wait for each other after each step if `together`, else never.
        """
        part = batch / len(ranks)
        times = np.array([self._time(rank, part) for rank in ranks])
        if not together:
            return float(np.sum(part / (times + self.jitter)))
        random = Random(0, "slowest").generator
        return float(batch / np.max(times + random.exponential(self.jitter, (DRAWS, len(ranks))), axis=1).mean())

    def _time(self, rank: int, samples: float) -> float:
        """Seconds that a rank takes for so many samples, without the random part."""
        return self.seconds * samples / self.samples * self.stragglers.get(rank, 1.0)


@dataclass
class Sleeper:
    """The pace of one rank. Sleeps that took too long are made up for by those that follow."""

    pace: Pace
    rank: int
    random: Random
    _late: float = field(default=0.0, init=False)  # seconds by which sleeps were too long

    def sleep(self, samples: int) -> None:
        """Sleep for as long as the computation of `samples` samples takes."""
        wanted = self.pace._time(self.rank, samples)
        if self.pace.jitter:
            wanted += float(self.random.generator.exponential(self.pace.jitter))
        begin = time.perf_counter()
        time.sleep(max(0.0, wanted - self._late))
        self._late += time.perf_counter() - begin - wanted
