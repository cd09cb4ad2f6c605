"""How far the ranks' parameters are apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..models.nn import Array

PIECE = 1 << 20  # elements that are compared at a time


def consensus_distance(arrays: Sequence[Array], comm: Any) -> float:
    """``1/p sum_r |x_r - m|^2``: x_r are the `arrays` of rank r, of shapes (n,), and m is their mean over p ranks.

    Collective. All ranks get the same number. It is computed in float64.
    """
    from mpi4py import MPI

    total = np.zeros(1)
    for array in arrays:
        for start in range(0, len(array), PIECE):
            mine = array[start : start + PIECE].astype(np.float64)
            mean = mine.copy()
            comm.Allreduce(MPI.IN_PLACE, mean, op=MPI.SUM)
            mean /= comm.size
            mine -= mean
            total += mine @ mine
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
    return float(total[0]) / int(comm.size)
