"""What MPI tells of ranks that have died, in a job that goes on without them (ULFM; docs/errors.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from collectives import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure

NEWS = 2.0  # seconds within which MPI hears of a death that another rank has noticed,
SOON = 0.5  # and of one that this rank has noticed; PeerFailure may also mean that a rank lives and has failed
NAMES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")


def dead_ranks(comm: Any) -> list[int]:
    """The ranks of `comm` that MPI knows to be dead. A local call."""
    failed, group = comm.Get_failed(), comm.Get_group()
    found: list[int] = sorted(failed.Translate_ranks(list(range(failed.size)), group))
    failed.Free()
    group.Free()
    return found


def is_death(error: Exception) -> bool:
    """Whether `error` is one by which MPI says that a rank has died, or that another rank has noticed it."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not isinstance(error, mpi.Exception):
        return False
    classes = {getattr(mpi, name, mpi.ERR_UNKNOWN) for name in NAMES}
    return error.Get_error_class() in classes - {mpi.ERR_UNKNOWN}  # that is what mpi4py has where an MPI has none


def is_loss(error: Exception) -> bool:
    """Whether an error may come from the death of a rank: the library's, or those of ULFM from MPI's own calls."""
    if isinstance(error, CollectiveError):
        return not isinstance(error, CollectiveMismatch | CollectiveTimeout)
    return is_death(error)


def missing_ranks(comm: Any, survivors: Any) -> list[int]:
    """The ranks of `comm` that are not in `survivors`, which was made from it. A local call."""
    from mpi4py import MPI

    whole, left = comm.Get_group(), survivors.Get_group()
    places = whole.Translate_ranks(list(range(whole.size)), left)
    whole.Free()
    left.Free()
    return [rank for rank, place in enumerate(places) if place == MPI.UNDEFINED]


def die() -> None:
    """End this process by a signal, after what it has printed is written: MPI then reports a dead rank.

    An exit code does not count as a death, and in MPI_Finalize this process would wait for the others.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def die_if_raised() -> None:
    """At the end of the program: `die` if an exception ended it."""
    if getattr(sys, "last_value", None) is not None:
        die()


def survives(comm: Any) -> bool:
    """Whether the job goes on when a rank of `comm` dies."""
    return getattr(comm, "why_no_shrink", "") is None


def explained(comm: Any, error: BaseException) -> BaseException:
    """`error`; or PeerFailure, which names dead ranks of `comm`, if they may be its cause.

    They may be the cause of MPI's own errors of deaths, and of errors of collectives but for a mismatch and a timeout.
    """
    by_mpi = isinstance(error, Exception) and is_death(error)
    if not by_mpi and not (isinstance(error, Exception) and is_loss(error) and survives(comm)):
        return error
    if (getattr(error, "origin", None) or "").startswith("CollectiveTimeout"):  # ranks may have ended since, by that
        return error
    from mpi4py import MPI

    end = time.monotonic() + (SOON if isinstance(error, PeerFailure) else NEWS)
    while not (dead := dead_ranks(comm)) and time.monotonic() < end:
        MPI.COMM_SELF.Iprobe()  # lets MPI hear of it
        time.sleep(0.01)
    if dead:
        return PeerFailure(f"rank {_listed(dead)} died{_in_the_world(comm, dead)}")
    return PeerFailure(f"a rank ended: {error}") if by_mpi else error


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))


def _in_the_world(comm: Any, ranks: Sequence[int]) -> str:
    """Text with the numbers in MPI_COMM_WORLD of ranks of `comm`, if these are others."""
    from mpi4py import MPI

    mine, world = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    there = list(mine.Translate_ranks(list(ranks), world))
    mine.Free()
    world.Free()
    known = MPI.UNDEFINED not in there and there != list(ranks)
    return f" (rank {_listed(there)} of MPI_COMM_WORLD)" if known else ""


@contextlib.contextmanager
def naming_the_dead(comm: Any, then: Callable[[], None] | None = None) -> Iterator[None]:
    """Turn errors that come from the death of ranks of `comm` into PeerFailure, which names them (see `explained`).

    ``then()`` is called before one is raised.
    """
    try:
        yield
    except Exception as error:
        failure = explained(comm, error)
        if failure is error:
            raise
        if then is not None:
            then()
        raise failure from error
