"""Checks of the arguments of methods that make communicators, before the ranks synchronise for such a method.

MPI's own methods wait for all ranks within MPI. If one rank fails there because of its arguments, the other ranks wait
on, and no exception reaches them. So each rank first makes the same call on MPI_COMM_SELF, as far as the arguments
allow, and raises here the error of mpi4py or MPI.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

__all__ = ["adjacent", "cart", "dist_graph", "graph", "group", "rehearse", "sub"]

_alone = threading.RLock()  # calls on MPI_COMM_SELF come one by one; a signal handler may make one within another


def rehearse(method: str, *args: Any) -> None:
    """Call ``method`` on MPI_COMM_SELF, and free the communicator made; raises the errors of MPI and mpi4py."""
    with _alone:
        made = getattr(MPI.Intracomm(MPI.COMM_SELF), method)(*args)
        if made != MPI.COMM_NULL:
            made.Free()


def group(comm: MPI.Intracomm, chosen: Any) -> list[int]:
    """The ranks in ``comm`` of the group ``chosen``; TypeError if it is no group, MPI.Exception if it has others."""
    if not isinstance(chosen, MPI.Group):
        raise TypeError(f"group: expected an mpi4py.MPI.Group, not {type(chosen).__name__}")
    if chosen == MPI.GROUP_NULL:
        raise MPI.Exception(MPI.ERR_GROUP)
    everybody = comm.Get_group()
    try:
        ranks = chosen.Translate_ranks(list(range(chosen.size)), everybody)
    finally:
        everybody.Free()
    if MPI.UNDEFINED in ranks:
        raise MPI.Exception(MPI.ERR_GROUP)
    return list(ranks)


def cart(comm: MPI.Intracomm, dims: Any, periods: Any, reorder: Any) -> None:
    """Check the arguments of Create_cart; MPI.Exception if ``dims`` are not positive or need too many ranks."""
    lengths = _integers(dims)
    if any(length < 1 for length in lengths) or math.prod(lengths) > comm.size:
        raise MPI.Exception(MPI.ERR_DIMS)
    rehearse("Create_cart", [1] * len(lengths), periods, reorder)


def sub(comm: MPI.Cartcomm, remain_dims: Any) -> None:
    """Check the arguments of Sub; mpi4py wants a flag for each dimension of ``comm``."""
    with _alone:
        grid = MPI.Intracomm(MPI.COMM_SELF).Create_cart([1] * comm.ndim)
        try:
            grid.Sub(remain_dims).Free()
        finally:
            grid.Free()


def graph(index: Any, edges: Any) -> None:
    """Check that the arguments of Create_graph are integers; mpi4py takes them in two forms."""
    for numbers in (index, edges):
        _integers(numbers)


def adjacent(comm: MPI.Intracomm, sources: Any, destinations: Any, *more: Any) -> None:
    """Check the arguments of Create_dist_graph_adjacent; MPI.Exception for a rank that ``comm`` does not have."""
    nobody = [[0] * len(_ranks(ranks, comm.size)) for ranks in (sources, destinations)]
    rehearse("Create_dist_graph_adjacent", *nobody, *more)


def dist_graph(comm: MPI.Intracomm, sources: Any, degrees: Any, destinations: Any, *more: Any) -> None:
    """Check the arguments of Create_dist_graph; MPI.Exception for a rank that ``comm`` does not have."""
    begins, ends = _ranks(sources, comm.size), _ranks(destinations, comm.size)
    rehearse("Create_dist_graph", [0] * len(begins), degrees, [0] * len(ends), *more)


def _integers(given: Sequence[Any]) -> list[int]:
    """The items of ``given``, an array too, read as mpi4py reads them: a generator or a set is a TypeError."""
    return [operator.index(given[i]) for i in range(len(given))]


def _ranks(given: Sequence[Any] | None, size: int) -> list[int]:
    ranks = [] if given is None else _integers(given)
    if any(rank not in range(size) for rank in ranks):
        raise MPI.Exception(MPI.ERR_RANK)
    return ranks
