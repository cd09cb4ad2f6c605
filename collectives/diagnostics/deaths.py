"""What MPI reports of processes that have died: its error classes, and the ranks (ULFM, as in Open MPI).

An MPI without ULFM reports nothing of the kind; a death is then known on the machine of the dead process only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpi4py import MPI

from ..errors import PeerFailure
from ..system import mpi_library

__all__ = ["are_told", "by_death", "means_death", "missed", "named"]

NAMES = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
#: Error classes that mean that a process died, or that another rank has noticed it; empty if this MPI has none, for
#: which mpi4py has ERR_UNKNOWN in their place.
DEATHS = {getattr(MPI, name, MPI.ERR_UNKNOWN) for name in NAMES} - {MPI.ERR_UNKNOWN}
UNCLEAR = {MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN}  # error classes that do not say what happened


def means_death(code: int) -> bool:
    """Whether the MPI error code ``code`` says that a rank died."""
    return bool(code) and MPI.Get_error_class(code) in DEATHS


def by_death(error: BaseException) -> bool:
    """Whether ``error`` is an exception by which MPI says that a rank died."""
    return isinstance(error, MPI.Exception) and error.Get_error_class() in DEATHS


def _ended(comm: MPI.Comm, error: MPI.Exception) -> bool:
    """Whether a death may have made a call that makes or frees a communicator end by ``error``.

    Open MPI 5 may end such a call by MPI_ERR_OTHER if a rank dies within it. MPI then knows that rank to be dead.
    """
    return by_death(error) or error.Get_error_class() in UNCLEAR and bool(missed(comm))


def are_told() -> bool:
    """Whether this MPI reports which ranks died."""
    return mpi_library.why_no_survivors() is None


def missed(comm: MPI.Comm) -> list[int]:
    """The ranks of ``comm`` that MPI knows to be dead, sorted; a local call."""
    if comm == MPI.COMM_NULL or not are_told():
        return []
    dead, all_ranks = comm.Get_failed(), comm.Get_group()
    try:
        return sorted(dead.Translate_ranks(list(range(dead.size)), all_ranks))
    finally:
        dead.Free()
        all_ranks.Free()


def _failure(comm: MPI.Comm, what: str, error: MPI.Exception) -> PeerFailure:
    """The PeerFailure to raise for ``error``, by which the MPI call ``what`` ended; it names the dead ranks."""
    ranks = ", ".join(map(str, missed(comm)))
    return PeerFailure(
        f"{what} on rank {comm.rank} of {comm.size}: {f'rank {ranks}' if ranks else 'a rank'} died ({error})"
    )


@contextlib.contextmanager
def named(comm: MPI.Comm, what: str) -> Iterator[None]:
    """Within this context, turn MPI's errors by a death into PeerFailure; ``what`` names the call, which makes or frees
    a communicator."""
    try:
        yield
    except MPI.Exception as e:
        if _ended(comm, e):
            raise _failure(comm, what, e) from e
        raise
