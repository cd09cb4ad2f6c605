"""Sums whose bits depend on the terms alone: exact, and rounded once.

The bits do not depend on the order of the terms, the number of ranks, the rank that has a term, or the algorithm.
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
    """Exact sums, one for each element of ``shape``, to which float32 or float64 terms can be added in portions.

    ``data`` is an array of accumulators, 56 bytes each for float32 and 280 for float64: fixed-point numbers (Kulisch
    1971), wide enough for 2^63 terms of any size. Every reduction takes it with ``op=collectives.REPRODUCIBLE_SUM``.
    TypeError for other types.
    """

    def __init__(self, shape: int | tuple[int, ...] = (), dtype: Any = np.float64):
        self.dtype = np.dtype(dtype)
        if self.dtype not in ACCUMULATORS:
            raise TypeError(f"dtype: exact sums are of float32 or float64, not {self.dtype}")
        self.data = np.zeros(shape, ACCUMULATORS[self.dtype])

    def add(self, terms: Any, axis: int | tuple[int, ...] | None = None) -> Accumulator:
        """Add the sums of the array ``terms`` over ``axis`` (None: all axes) to the accumulators; returns ``self``.

        The sums must have the shape of the accumulators, else ValueError; TypeError for an array of another type.
        """
        rows = _rows(terms, axis, self.dtype)
        if rows.shape[:-1] != self.data.shape:
            raise ValueError(
                f"terms: they have sums of shape {rows.shape[:-1]}, the accumulators are of shape {self.data.shape}"
            )
        each = rows.shape[-1]
        rows, sums = rows.reshape(self.data.size, each), self.data.reshape(-1)
        step = max(1, MOST // max(1, each * self.dtype.itemsize))
        for i in range(0, len(rows), step):
            _core.exact_add(DTYPE_CODES[self.dtype.name], sums[i : i + step], np.ascontiguousarray(rows[i : i + step]))
        return self

    def allreduce(self, comm: Any, *, algorithm: str | None = None) -> Accumulator:
        """Add up the accumulators of all ranks of a :class:`collectives.Communicator`; collective, returns ``self``."""
        _refuse_plain(comm)
        comm.Allreduce(MPI.IN_PLACE, self.data, op=REPRODUCIBLE_SUM, algorithm=algorithm)
        return self

    def value(self) -> Any:
        """The sums, each rounded to nearest even: an array of ``shape``, or a scalar if ``shape`` is ()."""
        made = np.empty(self.data.shape, self.dtype)
        _core.narrow(DTYPE_CODES[self.dtype.name], made, self.data)
        return made[()]


def reproducible_sum(
    x: Any, axis: int | tuple[int, ...] | None = None, *, comm: Any = None, algorithm: str | None = None
) -> Any:
    """The exact sum of ``x`` over ``axis`` (None: all axes) and, with ``comm``, over all its ranks, rounded once.

    ``x`` is of float32 or float64, else TypeError; shape and type of the result are those of ``numpy.sum``. Summed axes
    may have any length, 0 included, on each rank; the shape of the result must be the same on all ranks. With ``comm``,
    a :class:`collectives.Communicator`, the call is collective; ``algorithm`` is a name of
    ``collectives.algorithms("allreduce")``. Method: fixed-point accumulators (Kulisch 1971), and terms cut without
    error (Rump, Ogita and Oishi 2008); see docs/reproducibility.md, also for special values and cost.
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
    """Raise TypeError for a communicator that is not of this library, and so does not know the op."""
    if not hasattr(comm, "explain"):
        raise TypeError(f"comm: expected a collectives.Communicator, not {type(comm).__name__}")


def _rows(terms: Any, axis: int | tuple[int, ...] | None, dtype: np.dtype) -> np.ndarray:
    """``terms`` reshaped so that the last axis has the terms of one sum; a view if possible."""
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
