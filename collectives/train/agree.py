"""The default communicator, and helpers by which all ranks get the same result or raise the same error."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from collectives import CollectiveError

from .roles import Role, role_in
from .threads.job import current

T = TypeVar("T")

KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (TypeError, OSError, ImportError, RuntimeError, ValueError, FloatingPointError)
}
Failure = tuple[str, int | None, str]  # a key of KINDS, the error's number if it has one, its text


def communicator(comm: Any = None) -> Any:
    """`comm`; if it is None, this thread's communicator if it is a rank of `threads.run`, else a
    ``collectives.Communicator`` of the world (MPI is imported only then).

    While ranks train with a parameter server, it is instead the communicator of the ranks that train; on ranks that
    have served, that of those that have (see `Strategy.close`).
    """
    comm = current() if comm is None else comm
    if comm is not None:
        role = role_in(comm)
        return comm if role is None else role.comm
    import collectives

    make = collectives.Communicator  # without mpi4py an ImportError that says what to install
    from mpi4py import MPI

    role = role_in(MPI.COMM_WORLD)
    return make(MPI.COMM_WORLD) if role is None else role.comm


def role_of(comm: Any = None) -> Role | None:
    """This rank's role among the ranks of `comm` (default: as `communicator`); None as long as all are alike."""
    if comm is None:
        comm = current()
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    return role_in(comm)


def on_rank_0(comm: Any, make: Callable[[], T]) -> T:
    """The result of ``make()``, which runs on rank 0 only. The result is pickled and sent to all ranks. Collective.

    An exception of ``make()`` is raised on every rank. Rank 0 raises it as it is. So do the others if it is a
    ValueError, OSError or ImportError that can be pickled; else they raise what `error_of` makes of it. `is_own` says
    which exceptions are left to rank 0 alone.
    """
    result: tuple[T | None, Exception | None] = (None, None)
    mine: Exception | None = None
    if comm.rank == 0:
        try:
            result = (make(), None)
        except Exception as error:
            if not is_own(error):
                raise
            as_it_is = isinstance(error, ValueError | OSError | ImportError) and _travels(error)
            mine, result = error, (None, error if as_it_is else error_of(0, failure_of(error)))
    value, failure = comm.bcast(result, root=0)
    if failure is not None:
        raise mine or failure
    result_of_rank_0: T = value
    return result_of_rank_0


def _travels(error: Exception) -> bool:
    """Whether another rank can have `error`: it may hold what cannot be pickled, or not be made again from its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


def is_own(error: Exception) -> bool:
    """Whether `error` is this rank's own. If a collective failed, no other collective can tell the other ranks."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    return not isinstance(error, CollectiveError) and (mpi is None or not isinstance(error, mpi.Exception))


def failure_of(error: Exception) -> Failure:
    """What other ranks are to know of an error of this rank; of a kind not in KINDS, a ValueError that names it."""
    kind = next((name for name, known in KINDS.items() if isinstance(error, known)), None)
    number = error.errno if isinstance(error, OSError) else None
    if kind is None:
        return "ValueError", None, f"{type(error).__name__}: {error}"
    text = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        text = error.strerror + ("" if error.filename is None else f": {error.filename}")
    return kind, number, text


def error_of(rank: int, failure: Failure) -> Exception:
    """The error that other ranks raise for the failure of `rank`."""
    kind, number, text = failure
    said = f"rank {rank}: {text}"
    return KINDS[kind](said) if number is None else OSError(number, said)


def raise_on_all(comm: Any, mine: Exception | None) -> None:
    """Raise on all ranks if any rank has an error: its own, or else that of the lowest rank that has one. Collective.

    The text of another rank's error names that rank.
    """
    failures: list[Failure | None] = comm.allgather(None if mine is None else failure_of(mine))
    if mine is not None:
        raise mine
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise error_of(rank, failure)


def together(comm: Any, work: Callable[[], T]) -> T:
    """The result of ``work()`` on this rank. If it raises an exception on any rank, all ranks raise.

    Collective; see `raise_on_all`, and `is_own` for exceptions that are left to their rank. What one rank has changed
    in its memory before another one failed stays changed.
    """
    mine: Exception | None = None
    try:
        result = work()
    except Exception as error:
        if not is_own(error):
            raise
        mine = error
    raise_on_all(comm, mine)
    return result


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
