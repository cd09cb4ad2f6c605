"""Bounded asynchronous training: stale synchronous parallel."""

from __future__ import annotations

from typing import Any

from ..server.clocks import Policy, check_staleness
from .central import Central


class SSP(Central):
    """Stale synchronous parallel: a worker goes on unless it is more than `staleness` clocks ahead of the slowest one.

    `staleness` is 3 by default. A clock is a step. Each gradient is an update as soon as it arrives, with 1 / workers
    of the learning rate, so that a clock of all workers counts as much as a synchronous step. With a staleness of 0 the
    gradients of a clock are folded in rank order into one update instead, which is `ParameterServer`. (Ho et al. 2013,
    sec. 2 and 3; theorem 1 bounds the regret of SGD for convex losses, with rates that fall as the root of the number
    of steps.) Workers that go on at the same pace are late by ``workers - 1`` updates, whatever `staleness` is. So
    `batches` is 1 unless `staleness` is 0: a rate that was scaled for the global batch is too long for late gradients.
    The rates of theorem 1 fall with the number of workers, too, as ``1 / sqrt((staleness + 1) workers)``.

    ``gap`` is the largest distance of clocks that servers have recorded, at most `staleness`; ``lag`` the largest
    number of updates by others between a worker's pull and the update by its gradient, at most ``(workers - 1) (2
    staleness + 1)``. Each gradient counts alike, however many samples it is the mean of, unless `staleness` is 0. Other
    arguments, and the bytes, are those of `ParameterServer`. Delays that pass cost nothing up to `staleness` clocks; a
    worker that is slow for good sets the pace. Raises ValueError for a negative staleness, TypeError for what is no
    number of clocks.
    """

    def __init__(self, staleness: int = 3, servers: int = 1, **how: Any) -> None:
        check_staleness(staleness)
        super().__init__(servers, **how)
        self.replicated = self.lockstep = staleness == 0
        self.hands_out = staleness > 0
        self.policy = Policy(staleness, fold=staleness == 0, rate="shared")
