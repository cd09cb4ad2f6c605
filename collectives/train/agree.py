"""The default communicator, and helpers by which all ranks get the same result or raise the same error."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from .flat.adapt import parameters
from .threads.job import current

T = TypeVar("T")


def communicator(comm: Any = None) -> Any:
    """`comm`; if it is None, this thread's communicator if it is a rank of `threads.run`, else a
    ``collectives.Communicator`` of the world (MPI is imported only then)."""
    if comm is None:
        comm = current()
    if comm is not None:
        return comm
    from mpi4py import MPI

    import collectives

    return collectives.Communicator(MPI.COMM_WORLD)


def on_rank_0(comm: Any, make: Callable[[], T]) -> T:
    """The result of ``make()``, which runs on rank 0 only. The result is pickled and sent to all ranks. Collective.

    A ValueError, OSError or ImportError of ``make()`` is raised on every rank.
    """
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


def on_all_ranks(comm: Any, check: Callable[[], None]) -> None:
    """Run ``check()`` on all ranks; if it raises TypeError or ValueError on a rank, raise on all ranks. Collective.

    A rank on which it has raised nothing raises the error of the lowest rank that has one, and names that rank.
    """
    mine: Exception | None = None
    try:
        check()
    except (TypeError, ValueError) as error:
        mine = error
    raise_on_all(comm, mine)


def raise_on_all(comm: Any, mine: Exception | None) -> None:
    """Raise `mine` on this rank, and the error of the lowest rank that has one on ranks without one. Collective.

    Nothing is raised if `mine` is None on all ranks.
    """
    errors = comm.allgather(mine)
    if mine is not None:
        raise mine
    for rank, other in enumerate(errors):
        if other is not None:
            raise type(other)(f"rank {rank}: {other}")


def same_as_rank_0(comm: Any, mine: dict[str, Any], what: str) -> None:
    """Raise ValueError on all ranks unless `mine` is equal on all ranks. Collective.

    The error of a rank that differs from rank 0 names the first key that differs. `what` begins the message.
    """
    reference = comm.bcast(mine, root=0)
    different = [key for key in {**reference, **mine} if reference.get(key) != mine.get(key)]
    count = comm.allreduce(int(bool(different)))
    if different:
        key = different[0]
        raise ValueError(f"{what}: {key} is {mine.get(key)} on rank {comm.rank}, {reference.get(key)} on rank 0")
    if count:
        raise ValueError(f"{what}: {count} of {comm.size} ranks differ from rank 0")


def same_bits(net: Any, comm: Any) -> bool:
    """Whether the parameters of `net` have the same bits on all ranks. Collective; ranks compare a SHA-256 (32
    bytes)."""
    digest = hashlib.sha256()
    for _, array in parameters(net):
        digest.update(array.tobytes())
    mine = digest.digest()
    return bool(comm.allreduce(int(comm.bcast(mine, root=0) != mine)) == 0)
