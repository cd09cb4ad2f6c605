"""Which ranks train and which serve, from the moment when `distribute` sets servers apart until training has ended.

Meanwhile the functions of this package, when they are given the communicator of all ranks, work on that of the ranks
with the same role. So programs need not tell the two communicators apart.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

_here = threading.local()


class Role(NamedTuple):
    """What this rank does: ``whole`` is the communicator of all ranks, ``comm`` that of the ranks with this role."""

    whole: Any
    comm: Any
    trains: bool


def begin(role: Role) -> None:
    """Let `role` be this rank's."""
    _roles().append(role)


def end(role: Role) -> None:
    """End `role`, if it is this rank's."""
    _here.roles = [other for other in _roles() if other is not role]


def role_in(comm: Any) -> Role | None:
    """This rank's role in a communicator of the same ranks as `comm`; None if its ranks are all alike. A local call."""
    return next((role for role in _roles() if _same_ranks(comm, role.whole)), None)


def _roles() -> list[Role]:
    if not hasattr(_here, "roles"):
        _here.roles = []
    found: list[Role] = _here.roles
    return found


def _same_ranks(one: Any, other: Any) -> bool:
    """Whether two communicators have the same ranks in the same order."""
    if one is other:
        return True
    if hasattr(other, "same_ranks"):  # ranks that are threads
        return bool(other.same_ranks(one))
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not (isinstance(one, mpi.Intracomm) and isinstance(other, mpi.Intracomm)):
        return False
    return one != mpi.COMM_NULL and mpi.Comm.Compare(one, other) in (mpi.IDENT, mpi.CONGRUENT)
