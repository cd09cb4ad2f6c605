"""Memory of flat arrays, and the cut of an array into the ranks' parts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..models.nn import Array


def allocate(comm: Any, count: int, dtype: DTypeLike) -> Array:
    """A zeroed array of shape (count,), in memory that the ranks of a node share if `comm` has such memory.

    A collective in place then copies nothing. All memory that is communicated in training is allocated here. `comm` is
    None for memory that is not communicated.
    """
    make = getattr(comm, "zeros", None)
    return np.zeros(count, dtype) if make is None else np.asarray(make(count, dtype))


def cut(count: int, ranks: int) -> list[int]:
    """The lengths of the parts into which `count` elements are cut: one for each rank, which differ by at most 1."""
    small, larger = divmod(count, ranks)
    return [small + (rank < larger) for rank in range(ranks)]


def own(count: int, rank: int, ranks: int) -> tuple[int, int]:
    """Begin and end of the part of `rank` in the `cut` of `count` elements."""
    small, larger = divmod(count, ranks)
    start = rank * small + min(rank, larger)
    return start, start + small + (rank < larger)


def is_narrow(dtype: Any) -> bool:
    """Whether elements have 16 bits: float16, or bfloat16."""
    return np.dtype(dtype).itemsize == 2


def squares(array: Array, piece: int = 1 << 15) -> float:
    """The sum of the squares of the elements, of shape (n,). It is finite exactly if all elements are.

    The exception is float64: elements above about 1e154, whose squares it cannot hold, give infinity. The elements are
    added in pieces, so that the error does not grow with n.
    """
    total = 0.0
    with np.errstate(all="ignore"):
        for start in range(0, len(array), piece):
            part = array[start : start + piece]
            part = part.astype(np.float32) if is_narrow(part.dtype) else part
            found = float(np.dot(part, part))
            if not np.isfinite(found) and part.dtype == np.float32:  # a square may be out of the range of float32
                part = part.astype(np.float64)
                found = float(np.dot(part, part))
            total += found
    return total
