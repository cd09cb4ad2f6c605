"""What MPI tells of ranks that have died, in a job that goes on without them (ULFM; docs/errors.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from collectives import PeerFailure

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


@contextlib.contextmanager
def naming_the_dead(comm: Any) -> Iterator[None]:
    """Turn errors by which MPI says that a rank of `comm` has died into PeerFailure, which names the dead ranks."""
    try:
        yield
    except Exception as error:
        if not is_death(error):
            raise
        raise PeerFailure(f"rank {', '.join(map(str, dead_ranks(comm)))} died") from error
