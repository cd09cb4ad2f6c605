"""Communicators that nobody holds any more: queued where they die, freed together where all ranks meet.

MPI_Comm_free is collective, and garbage collectors do not run in step. A dead communicator is therefore only noted;
the next creation of a communicator, where ranks exchange a few words anyway, frees what the library had for those that
are dead on all their ranks. MPI's communicator itself is freed only where no program can have another handle to it:
mpi4py frees none when its object is collected. What MPI may still write into after a failure is kept here as well, to
the end of the process.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ..core import _core

if TYPE_CHECKING:
    from mpi4py import MPI

_buried: deque[tuple[str, int, list[MPI.Intracomm], Any]] = deque()  # by garbage collectors, which must not take locks
_dead: dict[str, tuple[int, list[MPI.Intracomm], Any]] = {}  # id: (ranks, MPI's communicators, flags others may read)
_lock = threading.Lock()
_kept: list[Any] = []


def watch(holder: Any, context: Any, handles: list[MPI.Intracomm]) -> weakref.finalize:
    """Note the communicator as dead when ``holder`` is collected; ``context`` says who and how it is.

    ``handles`` are the library's alone, to be freed once it is dead on all ranks.
    """
    finalizer = weakref.finalize(holder, _bury, os.getpid(), context, handles)
    finalizer.atexit = False  # MPI_Finalize frees what is left
    return finalizer


def _bury(pid: int, context: Any, handles: list[MPI.Intracomm]) -> None:
    if os.getpid() != pid:
        return
    if context.broken is None:
        _buried.append((context.identity, context.size, handles, context))
    else:  # the others may be in a call still, and read this rank's memory
        keep(context)


def dead() -> list[tuple[str, int]]:
    """Identity and size of the communicators that are dead on this rank."""
    with _lock:
        while _buried:
            identity, size, handles, context = _buried.popleft()
            _dead[identity] = size, handles, context
        return [(identity, size) for identity, (size, *_) in _dead.items()]


def free_agreed(votes: Counter[tuple[str, int]]) -> None:
    """Free, in one order, the communicators that as many ranks named in :func:`dead` as each has."""
    for identity in sorted(identity for (identity, size), count in votes.items() if count == size):
        with _lock:
            mine = _dead.pop(identity, None)
        for handle in mine[1] if mine else ():
            handle.Free()


def keep(what: Any) -> None:
    """Never collect it: MPI may still read or write its memory."""
    _kept.append(what)


# A forked child keeps what its parent has under way as it is.
os.register_at_fork(after_in_child=lambda: _kept.extend(_core.leave_to_the_parent()))
