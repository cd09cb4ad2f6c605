"""The communicator by default, and how all ranks come to the same error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from .nn import Sequential

T = TypeVar("T")


def communicator(comm: Any = None) -> Any:
    """`comm`, or ``collectives.Communicator(MPI.COMM_WORLD)`` where it is None (MPI is imported only then)."""
    if comm is not None:
        return comm
    from mpi4py import MPI

    import collectives

    return collectives.Communicator(MPI.COMM_WORLD)


def on_rank_0(comm: Any, make: Callable[[], T]) -> T:
    """``make()``, run on rank 0 alone and sent to all (it must be small). Its error is raised on every rank."""
    result: tuple[T | None, Exception | None] = (None, None)
    if comm.rank == 0:
        try:
            result = (make(), None)
        except (ValueError, OSError, ImportError) as error:
            result = (None, error)
    value, failure = comm.bcast(result, root=0)
    if failure is not None:
        raise failure
    result_of_rank_0: T = value
    return result_of_rank_0


def same_as_rank_0(comm: Any, mine: dict[str, Any], what: str) -> None:
    """Raise ValueError on all ranks unless `mine` is equal on all; the ranks that differ say where."""
    reference = comm.bcast(mine, root=0)
    different = [key for key in {**reference, **mine} if reference.get(key) != mine.get(key)]
    count = comm.allreduce(int(bool(different)))
    if different:
        key = different[0]
        raise ValueError(f"{what}: {key} is {mine.get(key)} on rank {comm.rank}, {reference.get(key)} on rank 0")
    if count:
        raise ValueError(f"{what}: {count} of {comm.size} ranks differ from rank 0")


def same_bits(net: Sequential, comm: Any) -> bool:
    """Whether the parameters of all ranks are the same bits. Collective; each rank sends 32 bytes."""
    digest = hashlib.sha256()
    for p in net.parameters():
        digest.update(p.data.tobytes())
    mine = digest.digest()
    return bool(comm.allreduce(int(comm.bcast(mine, root=0) != mine)) == 0)
