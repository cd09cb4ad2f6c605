"""The arguments that a rank of ``peers.py`` passes to mpi4py's methods, and the expected results."""

from __future__ import annotations

from typing import Any

import numpy as np
from _peers_collectives import lengths

PATTERN = 4099  # a prime, so that data moved by any power of two are found
MOVING = ("allgather", "gather", "alltoall")


def pattern(rank: int) -> np.ndarray:
    """The data of a rank: whole numbers, so that sums of float32 are exact, and different on every rank."""
    return (np.arange(PATTERN) * (7 * rank + 3) % 1021 + rank).astype(np.float32)


def arguments(MPI: Any, collective: str, x: np.ndarray, y: np.ndarray, size: int) -> tuple[Any, ...]:
    """The arguments of a call that sends x and receives y; an empty array stands for a buffer that a rank does not
    have."""

    def listed(array: np.ndarray) -> Any:
        if not len(array):
            return None
        n = len(array) // size
        return [array, ([n] * size, [i * n for i in range(size)]), MPI.FLOAT]

    def plain(array: np.ndarray) -> Any:
        return array if len(array) else None

    if collective == "barrier":
        return ()
    if collective == "bcast":
        return (y,)
    if collective == "reduce_scatter":
        return x, y, [len(y)] * size
    sends = listed if collective in ("scatterv", "alltoallv") else plain
    receives = listed if collective in ("gatherv", "allgatherv", "alltoallv") else plain
    return sends(x), receives(y)


def fill(collective: str, x: np.ndarray, y: np.ndarray, rank: int) -> None:
    """Fill x with a rank's data, and y with values that no call returns."""
    x[:] = np.resize(pattern(rank), len(x))
    y[:] = np.resize(pattern(rank), len(y)) if collective == "bcast" and rank == 0 else -1


def expected(collective: str, rank: int, size: int, n: int) -> np.ndarray:
    """The expected y."""
    sends, receives = lengths(collective, rank, size, n)
    base = collective.removesuffix("v").removesuffix("_block")
    if base in ("bcast", "scatter"):
        whole = np.resize(pattern(0), size * n)
        return whole[rank * n : (rank + 1) * n] if base == "scatter" else whole[:n]
    each = [np.resize(pattern(r), sends) for r in range(size)]
    if base in MOVING:
        first = rank * n if base == "alltoall" else 0
        return np.concatenate([one[first : first + n] for one in each])[:receives]
    if base == "exscan" and rank == 0:
        return np.full(n, -1, np.float32)
    last = rank if base == "exscan" else rank + 1 if base == "scan" else size
    first = rank * receives if base == "reduce_scatter" else 0
    return sum(each[1:last], each[0])[first : first + receives]
