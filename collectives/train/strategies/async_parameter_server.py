"""Asynchronous training with a parameter server."""

from __future__ import annotations

import math
from typing import Any

from ..counts import real
from ..server.clocks import RATES, Policy
from .central import Central


class AsyncParameterServer(Central):
    """Asynchronous: each gradient is an update as soon as it arrives, and nobody waits (Dean et al. 2012, sec. 4.1).

    * `rate`: what the learning rate of an update is multiplied by. "staleness" (default): 1 / max(1, lag), where lag
      counts the updates by others since the worker read the parameters (Zhang et al. 2016, eq. 6). "shared": 1 /
      workers, so that the workers' gradients together count as much as their mean in a synchronous step. "full": 1.
      With plain SGD, a curvature L and gradients that are always t updates late, "full" diverges from the rate ``2
      sin(pi / (4 t + 2)) / L`` on, "staleness" converges up to 1 / L.
    * `oldest`: the largest lag at which a gradient is used; older ones are dropped, as by the servers of Gorila (Nair
      et al. 2015, section 4.3). ``dropped`` counts them. Default: any.
    * `compensation`: lambda of DC-ASGD (Zheng et al. 2017, eq. 10): ``lambda g g (w - w_old)`` is added to a gradient
      g that was computed from w_old and arrives at w. Servers then keep the parameters that each worker has read.
      Default 0: none.

    Each gradient counts alike, also that of the last, short part of an epoch: an update is by the mean over the samples
    of its worker's step, however many these are.

    Other arguments, and the bytes, are those of `ParameterServer`; the pace is each worker's own. The bounds on
    convergence assume that the lag is bounded, which nothing here does: see `SSP`. Raises ValueError for another
    `rate`, for a negative `compensation` or `oldest`, and for `compensation` with `tables`, whose rows would get none.
    """

    lockstep = False
    hands_out = True

    def __init__(
        self, servers: int = 1, *, rate: str = "staleness", oldest: float = math.inf, compensation: float = 0.0,
        **how: Any,
    ) -> None:  # fmt: skip
        super().__init__(servers, **how)
        if rate not in RATES:
            raise ValueError(f"rate must be one of {', '.join(RATES)}, not {rate!r}")
        if not 0 <= real("compensation", compensation) < math.inf:
            raise ValueError(f"compensation must be finite and not negative, not {compensation}")
        if compensation and self.tables:
            raise ValueError("compensation: gradients of rows would get none, so not with tables")
        if not real("oldest", oldest) >= 0:
            raise ValueError(f"oldest must be at least 0, not {oldest}")
        self.policy = Policy(staleness=math.inf, fold=False, rate=rate, oldest=oldest, compensation=compensation)
