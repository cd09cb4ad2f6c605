"""``Clocks``: who may go on, and whose gradients make an update. There is no communication here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

RATES = ("full", "shared", "staleness")


@dataclass(frozen=True)
class Policy:
    """How a server treats gradients.

    * ``staleness``: the most clocks by which a worker that goes on may be ahead of the slowest one; infinite for none.
    * ``fold``: whether all workers' gradients of a clock are one update, as their mean over all samples. That needs a
      staleness of 0. Otherwise each gradient is an update as soon as it is there.
    * ``rate``: what the learning rate of such an update is multiplied by. "full": 1; "shared": 1 / workers;
      "staleness": 1 / max(1, lag), with the lag of the gradient (see `Clocks`).
    * ``oldest``: the largest lag at which a gradient becomes an update; an older one is dropped (Gorila). Infinite for
      none. It needs updates without ``fold``.
    * ``compensation``: lambda of DC-ASGD, 0 for none.
    * ``attraction``: if it is not 0, workers push parameters, and the server's are a centre that is moved so far to
      them (EASGD).
    """

    staleness: float = 0
    fold: bool = True
    rate: str = "full"
    oldest: float = math.inf
    compensation: float = 0.0
    attraction: float = 0.0


class Clocks:
    """The clocks of the workers of one server.

    A worker's clock counts its steps. ``version`` counts the server's updates. A worker that has ended its clock may
    pull parameters, and go on, when it is at most ``staleness`` clocks ahead of the slowest worker.

    ``gap`` is the largest distance between the clocks of a worker that went on and of the slowest one at that moment;
    it is at most the staleness s. ``lag`` is the largest number of updates by other workers between a worker's pull and
    the update by the gradient that it computed from that. Without ``fold`` it is at most (workers - 1) (2 s + 1): when
    a worker goes on at clock c, the others are at c - s or later; as long as it is at c, they get to c + s + 1. With
    ``fold`` it is 0. (Ho et al. 2013, sec. 2.)

    A gradient whose lag is above `oldest` is no update; ``dropped`` counts those.
    """

    def __init__(self, workers: Iterable[int], staleness: float, fold: bool, oldest: float = math.inf) -> None:
        if fold and staleness:
            raise ValueError("a clock's gradients can be folded into one update with a staleness of 0 only")
        self._staleness, self._fold, self._oldest = staleness, fold, oldest
        self.clock = dict.fromkeys(workers, 0)
        self._resting: set[int] = set()  # workers for which nobody waits
        self._read = dict.fromkeys(self.clock, 0)  # the version that a worker's gradient will be computed from
        self._ended: set[int] = set()  # workers whose gradients of the current clock are there
        self.version = self.gap = self.lag = self.dropped = 0

    @property
    def _running(self) -> set[int]:
        return self.clock.keys() - self._resting

    def end(self, worker: int, counts: bool = True) -> int:
        """`worker` ends its clock; without ``fold`` that is an update if it `counts`. Returns the lag of its gradient,
        -1 if it is too old, and 0 if it does not count."""
        self._resting.discard(worker)
        self.clock[worker] += 1
        lag = self.version - self._read[worker] if counts else 0
        if lag > self._oldest:
            self.dropped += 1
            return -1
        self.lag = max(self.lag, lag)
        if self._fold:
            self._ended.add(worker)
        else:
            self.version += counts
        return lag

    def complete(self) -> list[int]:
        """The workers whose gradients make the update of a clock, in rank order, once all are there; else none.

        They are returned once, and the version is counted.
        """
        if not self._ended or not self._ended >= self._running:
            return []
        ended, self._ended = sorted(self._ended), set()
        self.version += 1
        return ended

    def may_pull(self, worker: int) -> bool:
        """Whether `worker`, which has ended its clock, may go on."""
        return worker not in self._ended and self._ahead(worker) <= self._staleness

    def _ahead(self, worker: int) -> int:
        clock = self.clock
        slowest = min(clock.values()) if not self._resting else min([clock[other] for other in self._running])
        return clock[worker] - slowest

    def pull(self, worker: int) -> None:
        """`worker` reads the parameters and goes on."""
        self._read[worker] = self.version
        self.gap = max(self.gap, self._ahead(worker))

    def rest(self, worker: int) -> None:
        """`worker` makes no steps until it meets the others, so nobody waits for it."""
        self._resting.add(worker)

    def meet(self) -> None:
        """All workers have met: their clocks are equal, and they have read the parameters."""
        self._resting.clear()
        latest = max(self.clock.values(), default=0)
        self.clock = dict.fromkeys(self.clock, latest)
        self._read = dict.fromkeys(self.clock, self.version)

    def remove(self, worker: int) -> None:
        """`worker` has left or died."""
        self.clock.pop(worker, None)
        self._read.pop(worker, None)
        self._ended.discard(worker)
        self._resting.discard(worker)


def check_staleness(staleness: float) -> None:
    """Raise TypeError or ValueError unless `staleness` is a number of clocks."""
    if isinstance(staleness, bool) or not (isinstance(staleness, int) or staleness == math.inf):
        raise TypeError(f"staleness is a number of clocks, not {staleness!r}")
    if staleness < 0:
        raise ValueError(f"staleness must be at least 0, not {staleness}")
