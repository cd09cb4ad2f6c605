"""Test accuracy over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from .agree import communicator
from .nn import Array, Sequential


def _correct(net: Sequential, x: Array, y: Array, batch: int = 1024) -> int:
    return sum(
        int(np.count_nonzero(net(x[i : i + batch]).data.argmax(axis=1) == y[i : i + batch]))
        for i in range(0, len(y), batch)
    )


def evaluate(net: Sequential, x: Array, y: Array, *, comm: Any = None, replicated: bool = True) -> dict[str, float]:
    """The share of (x, y), the same on all ranks, that `net` gets right. Collective; every rank gets the result.

    With `replicated` parameters each rank looks at a part: ``{"accuracy": ...}``. Otherwise each rank tests its own
    network on everything: "accuracy" is the ranks' mean, "accuracy_min" and "accuracy_max" are the worst and the best
    rank's.
    """
    comm = communicator(comm)
    if replicated:
        part = slice(comm.rank, None, comm.size)
        return {"accuracy": comm.allreduce(_correct(net, x[part], y[part])) / len(y)}
    each = comm.allgather(_correct(net, x, y) / len(y))
    return {"accuracy": sum(each) / len(each), "accuracy_min": min(each), "accuracy_max": max(each)}
