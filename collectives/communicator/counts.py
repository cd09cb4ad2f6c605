"""The counts of a reduce-scatter that was called without ``recvcounts``: the ranks tell each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..arguments import reductions
from ..arguments.buffers import in_place
from ..arguments.calls import COLLECTIVES, Arguments, Collective
from ..runtime.mpi_context import MPIContext

__all__ = ["of_all"]


def of_all(
    run: Callable[[Collective, Arguments], None], collective: Collective, arguments: Arguments, context: MPIContext
) -> np.ndarray:
    """All-gather, by ``run``, the numbers of elements that the ranks receive.

    The ranks gather the lengths of their vectors, too. So a vector of another length is a ValueError on all ranks, and
    no rank waits for another one. What else is wrong with this rank's arguments is found before.
    """
    if in_place(arguments.sendbuf):
        raise TypeError("recvcounts: needed where sendbuf is MPI.IN_PLACE")
    rank, size = context.rank, context.size
    received = reductions.parse(arguments.recvbuf, "recvbuf", True).count
    sent = reductions.parse(arguments.sendbuf, "sendbuf", False).count
    if sent >= received:  # counts with which nothing is wrong, unless it is with the arguments themselves
        likely = [0] * size
        likely[rank - 1] = sent - received
        likely[rank] += received
        reductions.draft(collective, replace(arguments, recvcounts=likely), context.library, rank, size)
    both = np.zeros((size, 2), np.int64)
    context.turn.part()
    run(COLLECTIVES["allgather"], Arguments(np.array([received, sent]), both))
    total = both[:, 0].sum()
    for other in np.flatnonzero(both[:, 1] != total):
        raise ValueError(f"sendbuf of rank {other} has {both[other, 1]} elements, the ranks' recvbufs {total}")
    return both[:, 0].copy()
