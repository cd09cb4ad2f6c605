"""How many samples all ranks together have used, without waiting for any rank."""

from __future__ import annotations

from typing import Any

import numpy as np


class Tally:
    """Counts samples until all ranks of `comm` together have used `target`.

    One all-reduce of a number is under way at a time. A rank that finds it complete begins the next one, and no rank
    waits. All ranks see the same totals in the same order, so all see the same first total that reaches the target.
    """

    def __init__(self, comm: Any, target: int) -> None:
        self._comm, self._target = comm, target
        self._mine = self._total = 0
        self._sum = np.zeros(1, np.int64)
        self._request: Any = None

    def add(self, samples: int) -> int:
        """This rank has used `samples` samples; returns the last total that is known. After the target no calls."""
        from mpi4py import MPI

        self._mine += samples
        if self._request is None or self._request.Test():
            self._total = int(self._sum[0])
            if self._total < self._target:
                self._sum[0] = self._mine
                self._request = self._comm.Iallreduce(MPI.IN_PLACE, self._sum, op=MPI.SUM)
        return self._total
