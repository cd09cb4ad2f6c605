"""Gradients whose bits do not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import collectives


def reproducible_backward(net: Any, loss_fn: Callable[[Any, Any], Any], x: Any, y: Any, *, comm: Any) -> float:
    """Set every gradient of `net` to the mean over the samples of all ranks, with the same bits for any number of
    ranks. Collective.

    In the place of ``loss_fn(net(x), y).backward()``; the optimizer is not distributed, and all ranks begin with the
    same parameters. `x` and `y` are this rank's samples of the step (0 or more), all ranks' together the global batch.
    Returns this rank's mean loss, 0 if it has no samples. The gradients of each sample are computed alone, so that they
    do not depend on the samples beside it, and are added up exactly (``collectives.Accumulator``, Kulisch 1971). Their
    sum is rounded once, then divided by the number of samples.

    That holds for ranks on processors and BLAS libraries of one kind, and for networks that compute a sample without
    the others (no batch normalisation) and without random numbers. Cost: backward passes of one sample each, and
    accumulators of 56 bytes for each float32 parameter, 280 for each float64, which are all-reduced once a step. Raises
    TypeError for parameters of other types, and for a communicator that is no ``collectives.Communicator``.
    """
    parameters = [p for p in net.parameters() if getattr(p, "requires_grad", True)]
    sums = [collectives.Accumulator(tuple(p.data.shape), _dtype(p)) for p in parameters]
    total = 0.0
    for i in range(len(x)):
        _clear(parameters)
        loss = loss_fn(net(x[i : i + 1]), y[i : i + 1])
        loss.backward()
        total += float(loss)
        for p, accumulator in zip(parameters, sums, strict=True):
            if p.grad is not None:
                accumulator.add(np.asarray(p.grad)[None], axis=0)
    samples = comm.allreduce(len(x))
    for p, accumulator in zip(parameters, sums, strict=True):
        mean = accumulator.allreduce(comm).value() / _dtype(p).type(max(1, samples))
        _store(p, mean)
    return total / len(x) if len(x) else 0.0


def _dtype(parameter: Any) -> np.dtype[Any]:
    """The NumPy type of a parameter of either kind of network: torch's types have the same names."""
    return np.dtype(str(parameter.data.dtype).rpartition(".")[2])


def _clear(parameters: list[Any]) -> None:
    for p in parameters:
        if hasattr(p, "zero_grad"):
            p.zero_grad()
        else:
            p.grad = None


def _store(parameter: Any, mean: Any) -> None:
    """Make `mean` the gradient of a parameter."""
    if hasattr(parameter, "zero_grad"):
        parameter.grad[...] = mean
    else:
        parameter.grad = parameter.data.new_tensor(mean)
