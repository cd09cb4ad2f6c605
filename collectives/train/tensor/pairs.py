"""Collectives as pairs of forward and backward: what a layer that is cut apart does to activations and to gradients.

A move is a function of this rank's array, the communicator and the `Cut`; all ranks call it. In a pair, the backward
move is the derivative of the forward one (Shoeybi et al. 2019, sec. 3; Korthikanti et al. 2022, sec. 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..models.nn import Array
from .cuts import Cut

Move = Callable[[Array, Any, Any], Array]


def identity(x: Array, comm: Any, cut: Cut | None) -> Array:
    """`x` itself. Nothing is sent."""
    return x


def all_reduce(x: Array, comm: Any, cut: Cut | None) -> Array:
    """The sum of the ranks' arrays, in a new array. Given to the communicator: ``x.nbytes``."""
    from mpi4py import MPI

    total = np.array(x, order="C")
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return total


def split(x: Array, comm: Any, cut: Cut) -> Array:
    """A copy of this rank's part of `x`, which all ranks have. Nothing is sent."""
    part: Array = cut.part(x, comm.rank).copy()
    return part


def all_gather(x: Array, comm: Any, cut: Cut) -> Array:
    """The ranks' parts, one after the other along the cut axis. Given to the communicator: ``x.nbytes``.

    ValueError if `x` is not this rank's part.
    """
    front = np.ascontiguousarray(np.moveaxis(x, cut.axis, 0))
    if len(front) != cut.sizes[comm.rank]:
        raise ValueError(f"rank {comm.rank} has {len(front)} elements of axis {cut.axis}, not {cut.sizes[comm.rank]}")
    whole = np.empty((cut.total, *front.shape[1:]), x.dtype)
    comm.Allgatherv(front, [whole, _counts(whole, cut)])
    return np.moveaxis(whole, 0, cut.axis)


def reduce_scatter(x: Array, comm: Any, cut: Cut) -> Array:
    """This rank's part of the sum of the ranks' arrays. Given to the communicator: ``x.nbytes``.

    ValueError unless the cut axis of `x` is whole.
    """
    from mpi4py import MPI

    front = np.ascontiguousarray(np.moveaxis(x, cut.axis, 0))
    if len(front) != cut.total:
        raise ValueError(f"axis {cut.axis} of {x.shape} should have {cut.total} elements")
    part = np.empty((cut.sizes[comm.rank], *front.shape[1:]), x.dtype)
    comm.Reduce_scatter(front, part, _counts(front, cut), op=MPI.SUM)
    return np.moveaxis(part, 0, cut.axis)


def _counts(whole: Array, cut: Cut) -> list[int]:
    """The number of elements of each rank's part of `whole`, whose first axis is the cut one."""
    row = math.prod(whole.shape[1:])
    return [size * row for size in cut.sizes]


class Pair(NamedTuple):
    """A collective and its derivative."""

    forward: Move
    backward: Move


#: A replicated array enters a layer of which each rank has a part: its gradients there are parts of a sum.
COPY = Pair(identity, all_reduce)
#: Each rank has a part of a sum, which all ranks need.
REDUCE = Pair(all_reduce, identity)
#: A replicated array, of which each rank needs its part.
SPLIT = Pair(split, all_gather)
#: Parts of an array, which all ranks need whole; all of them then compute the same, so their gradients are equal.
GATHER = Pair(all_gather, split)
#: Parts of an array, which all ranks need whole, each for a part of the layer: their gradients are parts of a sum.
GATHER_PARTIAL = Pair(all_gather, reduce_scatter)
#: Each rank has a part of a sum, of which it needs a part.
REDUCE_SCATTER = Pair(reduce_scatter, all_gather)
