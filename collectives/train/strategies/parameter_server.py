"""Synchronous training with a parameter server."""

from __future__ import annotations

from typing import Any

from ..server.clocks import Policy
from .central import Central


class ParameterServer(Central):
    """Synchronous: when the gradients of all workers are there, servers fold them in rank order into one update.

    Arguments are those of `Central`. The update uses the mean gradient over the samples of all workers, as `AllReduce`
    does, and all workers go on with the same parameters (Li et al., OSDI 2014, sec. 3.4, with sequential consistency).

    A worker sends and receives the parameters' bytes n once in a step, and a server ``2 n workers / servers``. Servers
    hold a gradient of each worker. The slowest worker sets the pace.
    """

    policy = Policy(staleness=0, fold=True)
    replicated = True

    def __init__(self, servers: int = 1, **how: Any) -> None:
        super().__init__(servers, **how)
