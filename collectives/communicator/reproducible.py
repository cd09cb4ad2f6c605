"""Sums whose bits depend on the numbers alone: exact, and rounded once.

Not on their order, nor on how many ranks there are, which of them has what, and which algorithm joins their parts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.buffers import REPRODUCIBLE_SUM
from ..arguments.datatypes import ACCUMULATORS, DTYPE_CODES
from ..core import _core

__all__ = ["Accumulator", "reproducible_sum"]

#: Bytes of accumulators, and of copies of strided terms, that reproducible_sum holds at a time.
MOST = 16 << 20


class Accumulator:
    """Exact sums, one for each element of ``shape``, of float32 or float64 terms that come bit by bit.

    ``data`` holds them in a type of its own, 56 bytes for a float32 and 280 for a float64 (fixed point, wide enough for
    2^63 terms of any size), on which every collective takes ``op=collectives.REPRODUCIBLE_SUM``. TypeError for other
    types.
    """

    def __init__(self, shape: int | tuple[int, ...] = (), dtype: Any = np.float64):
        self.dtype = np.dtype(dtype)
        if self.dtype not in ACCUMULATORS:
            raise TypeError(f"dtype: exact sums are of float32 or float64, not {self.dtype}")
        self.data = np.zeros(shape, ACCUMULATORS[self.dtype])

    def add(self, terms: Any, axis: int | tuple[int, ...] | None = None) -> Accumulator:
        """Add an array's sums over ``axis`` (None: over all of them), which must have the shape of the accumulators.

        TypeError where the array is of another type, ValueError where it is of another shape.
        """
        rows = _rows(terms, axis, self.dtype)
        if rows.shape[:-1] != self.data.shape:
            raise ValueError(f"terms: sums of shape {rows.shape[:-1]} for accumulators of shape {self.data.shape}")
        each = rows.shape[-1]
        rows, sums = rows.reshape(self.data.size, each), self.data.reshape(-1)
        step = max(1, MOST // max(1, each * self.dtype.itemsize))
        for i in range(0, len(rows), step):
            _core.exact_add(DTYPE_CODES[self.dtype.name], sums[i : i + step], np.ascontiguousarray(rows[i : i + step]))
        return self

    def allreduce(self, comm: Any, *, algorithm: str | None = None) -> Accumulator:
        """Add up the accumulators of all ranks of a :class:`collectives.Communicator`, on all of them; collective."""
        _refuse_plain(comm)
        comm.Allreduce(MPI.IN_PLACE, self.data, op=REPRODUCIBLE_SUM, algorithm=algorithm)
        return self

    def value(self) -> Any:
        """The sums, each rounded to nearest even: an array of ``shape``, or a scalar where that is ()."""
        made = np.empty(self.data.shape, self.dtype)
        _core.narrow(DTYPE_CODES[self.dtype.name], made, self.data)
        return made[()]


def reproducible_sum(
    x: Any, axis: int | tuple[int, ...] | None = None, *, comm: Any = None, algorithm: str | None = None
) -> Any:
    """The exact sum of an array over ``axis`` and, with ``comm``, over the arrays of all its ranks, rounded once.

    As ``numpy.sum``, for float32 and float64, the result being of the same type. Arrays may have any length along the
    axes that are summed over, also none; the shape of the result must be the same on all ranks. Collective with
    ``comm``, a :class:`collectives.Communicator`, and ``algorithm``, a name of ``collectives.algorithms("allreduce")``.
    Bits, special values and cost: docs/reproducibility.md. TypeError for other types.
    """
    if comm is not None:
        _refuse_plain(comm)
    x = np.asarray(x)
    if x.dtype not in ACCUMULATORS:
        raise TypeError(f"x: exact sums are of float32 or float64, not {x.dtype}")
    rows = _rows(x, axis, x.dtype)
    made = np.empty(rows.shape[:-1], x.dtype)
    rows, flat = rows.reshape(made.size, rows.shape[-1]), made.reshape(-1)
    step = max(1, MOST // ACCUMULATORS[x.dtype].itemsize)
    for i in range(0, len(flat), step):
        sums = Accumulator(len(flat[i : i + step]), x.dtype).add(rows[i : i + step], -1)
        if comm is not None:
            sums.allreduce(comm, algorithm=algorithm)
        flat[i : i + step] = sums.value()
    return made[()]


def _refuse_plain(comm: Any) -> None:
    """TypeError for a communicator that does not know the op; nothing has been sent."""
    if not hasattr(comm, "explain"):
        raise TypeError(f"comm: expected a collectives.Communicator, not {type(comm).__name__}")


def _rows(terms: Any, axis: int | tuple[int, ...] | None, dtype: np.dtype) -> np.ndarray:
    """The terms with those of one sum along the last axis; a view where that can be."""
    x = np.asarray(terms)
    if x.dtype != dtype:
        raise TypeError(f"terms: expected {dtype}, not {x.dtype}")
    if axis is None:
        return x.ravel(order="K")
    axes = [_axis(a, x.ndim) for a in np.atleast_1d(axis).tolist()]
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = [x.shape[a] for a in kept]
    return x.transpose(*kept, *axes).reshape(*shape, math.prod(x.shape[a] for a in axes))


def _axis(axis: int, ndim: int) -> int:
    if not -ndim <= axis < ndim:
        raise np.exceptions.AxisError(axis, ndim)
    return axis % ndim
