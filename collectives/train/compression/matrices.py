"""Linear algebra whose result has the same bits on every processor: sums in a fixed order, without BLAS."""

from __future__ import annotations

import numpy as np

from ..models.nn import Array

TILE = 1 << 15  # elements that are worked on while they are in the cache


def orthonormal(rows: Array) -> None:
    """Make the rows of `rows` (r, m) orthonormal, in place, each against those before it.

    This is Gram-Schmidt in float64, done twice (Giraud, Langou, Rozloznik 2005: twice is enough). A row that depends on
    those before it, to the rounding of the dtype of `rows`, becomes zero. A row whose length is not finite becomes NaN.
    """
    basis = rows.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for i, row in enumerate(basis):
            before = length(row)
            for _ in range(2):
                for other in basis[:i]:
                    row -= (row * other).sum() * other
            after = length(row)
            if not np.isfinite(after):
                row.fill(np.nan)
            elif after <= before * np.finfo(rows.dtype).eps:
                row.fill(0)
            else:
                row /= after
    rows[...] = basis


def length(row: Array) -> float:
    """The Euclidean length of a vector."""
    return float(np.sqrt((row * row).sum()))


def product(p: Array, q: Array, out: Array) -> None:
    """Write the transpose of `p` (r, m), times `q` (r, n), into `out` (m, n)."""
    rows = max(1, TILE // max(1, q.shape[1]))
    term = np.empty((min(rows, p.shape[1]), q.shape[1]), out.dtype)
    for start in range(0, p.shape[1], rows):
        tile = out[start : start + rows]
        np.multiply(p[0, start : start + rows, None], q[0], out=tile)
        for i in range(1, len(p)):
            np.multiply(p[i, start : start + rows, None], q[i], out=term[: len(tile)])
            tile += term[: len(tile)]
