"""What ranks agree on when they come to a step: that all make it, of the same network, and none has a problem."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..agree import raise_on_all
from ..models.nn import Array

APART = "after backward(), {} of {} ranks called opt.step(), the others opt.zero_grad(): has a rank left out a step?"
ORDER = "ranks have called opt.step() or opt.zero_grad() of several networks in another order than other ranks"


def agree(comm: Any, number: int, stepping: bool, problem: str | None) -> Array:
    """What `raise_if_wrong` needs to know of all ranks: network `number`, whether it is a step, its `problem`.

    Collective. RuntimeError on ranks that have come here with different networks, whose buckets would never be there.
    """
    from mpi4py import MPI

    told = np.array([float(stepping), float(problem is not None), float(number), float(number) ** 2])
    comm.Allreduce(MPI.IN_PLACE, told, op=MPI.SUM)
    if told[2] ** 2 != comm.size * told[3]:  # equal only if all numbers are
        raise RuntimeError(ORDER)
    return told


def raise_if_wrong(comm: Any, told: Array, problem: str | None) -> None:
    """Raise RuntimeError on all ranks if only some of them make a step, or with the problem of a rank. Collective."""
    if 0 < told[0] < comm.size:
        raise RuntimeError(APART.format(int(told[0]), comm.size))
    if told[1]:
        raise_on_all(comm, None if problem is None else RuntimeError(problem))
