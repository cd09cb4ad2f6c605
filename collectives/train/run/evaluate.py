"""Test accuracy over ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..agree import communicator
from ..models.nn import Array, Sequential


@contextlib.contextmanager
def _evaluating(net: Any) -> Iterator[None]:
    """Let the layers of `net` work for evaluation; then each is as it was before."""
    layers = net.modules() if hasattr(net, "modules") else net.layers
    modes = [(layer, layer.training) for layer in layers if hasattr(layer, "training")]
    net.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training


def _correct(net: Sequential, x: Array, y: Array, batch: int = 1024) -> int:
    with _evaluating(net):
        return sum(
            int(np.count_nonzero(net(x[i : i + batch]).data.argmax(axis=1) == y[i : i + batch]))
            for i in range(0, len(y), batch)
        )


def evaluate(net: Sequential, x: Array, y: Array, *, comm: Any = None, replicated: bool = True) -> dict[str, float]:
    """The accuracy of `net` on (x, y): the part of the samples, from 0 to 1, whose label it predicts. Collective.

    The layers work for evaluation meanwhile, as after ``net.eval()``: dropout changes nothing, and draws no numbers.
    Then each layer is as it was before.

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
