"""Test accuracy over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..agree import communicator
from ..models.nn import Array, Sequential


def _correct(net: Sequential, x: Array, y: Array, batch: int = 1024) -> int:
    return sum(
        int(np.count_nonzero(net(x[i : i + batch]).data.argmax(axis=1) == y[i : i + batch]))
        for i in range(0, len(y), batch)
    )


def evaluate(net: Sequential, x: Array, y: Array, *, comm: Any = None, replicated: bool = True) -> dict[str, float]:
    """The accuracy of `net` on (x, y): the part of the samples, from 0 to 1, whose label it predicts. Collective.

    x: (samples, ...), y: labels, (samples,); both are the same on all ranks. Every rank gets the result. With
    `replicated` (default: True) all ranks have the same parameters: each rank tests a part of the samples, and the
    result is ``{"accuracy": ...}``. Otherwise each rank tests its own network on all samples: "accuracy" is the mean of
    the ranks, "accuracy_min" and "accuracy_max" are those of the worst and the best rank.
    """
    comm = communicator(comm)
    if replicated:
        part = slice(comm.rank, None, comm.size)
        return {"accuracy": comm.allreduce(_correct(net, x[part], y[part])) / len(y)}
    each = comm.allgather(_correct(net, x, y) / len(y))
    return {"accuracy": sum(each) / len(each), "accuracy_min": min(each), "accuracy_max": max(each)}
