"""Arguments of methods that make communicators, tried before the ranks meet for it.

MPI's own methods wait for all ranks within MPI. A rank that fails there for an argument of its own leaves the others
waiting, and no exception reaches them. So each rank first makes the same call on MPI_COMM_SELF, as far as its arguments
allow, and raises here what mpi4py and MPI say of them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

__all__ = ["adjacent", "cart", "dist_graph", "graph", "group", "rehearse"]


def rehearse(method: str, *args: Any) -> None:
    """Make a communicator of this rank alone, and free it; raises whatever MPI and mpi4py raise."""
    made = getattr(MPI.Intracomm(MPI.COMM_SELF), method)(*args)
    if made != MPI.COMM_NULL:
        made.Free()


def group(comm: MPI.Intracomm, chosen: Any) -> list[int]:
    """The ranks in ``comm`` of a group's processes; TypeError, or MPI.Exception where they are not all in it."""
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
    """Arguments of Create_cart."""
    lengths = [operator.index(length) for length in dims]
    if any(length < 1 for length in lengths) or math.prod(lengths) > comm.size:
        raise MPI.Exception(MPI.ERR_DIMS)
    rehearse("Create_cart", [1] * len(lengths), periods, reorder)


def graph(index: Any, edges: Any) -> None:
    """Arguments of Create_graph, of which mpi4py takes two forms: that they are integers."""
    for number in [*index, *edges]:
        operator.index(number)


def adjacent(comm: MPI.Intracomm, sources: Any, destinations: Any, *more: Any) -> None:
    """Arguments of Create_dist_graph_adjacent."""
    nobody = [[0] * len(_ranks(ranks, comm.size)) for ranks in (sources, destinations)]
    rehearse("Create_dist_graph_adjacent", *nobody, *more)


def dist_graph(comm: MPI.Intracomm, sources: Any, degrees: Any, destinations: Any, *more: Any) -> None:
    """Arguments of Create_dist_graph."""
    begins, ends = _ranks(sources, comm.size), _ranks(destinations, comm.size)
    rehearse("Create_dist_graph", [0] * len(begins), degrees, [0] * len(ends), *more)


def _ranks(given: Iterable[Any] | None, size: int) -> list[int]:
    ranks = [operator.index(rank) for rank in given or ()]
    if any(rank not in range(size) for rank in ranks):
        raise MPI.Exception(MPI.ERR_RANK)
    return ranks
