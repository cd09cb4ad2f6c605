"""Communicators whose Python objects have been deleted without ``Free``: queued, and freed later by all ranks together.

MPI_Comm_free is collective, and the ranks' garbage collectors do not run in step. So a dead communicator is only
queued. The next creation of a communicator, in which the ranks exchange data anyway, frees what the library had for the
communicators that are dead on all their ranks. MPI's communicator itself is freed only if the program cannot have
another handle to it: mpi4py, too, frees no communicator when its object is deleted. Memory that MPI may still write
after a failure is kept here as well, to the end of the process.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ..core import _core

if TYPE_CHECKING:
    from mpi4py import MPI

_buried: deque[tuple[str, int, list[MPI.Intracomm], Any]] = deque()  # filled by the garbage collector, without a lock
_dead: dict[str, tuple[int, list[MPI.Intracomm], Any]] = {}  # identity: (size, MPI's communicators, context)
_lock = threading.Lock()
_kept: list[Any] = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))  # MPI is finalized after the interpreter has freed its modules


def watch(holder: Any, context: Any, handles: list[MPI.Intracomm]) -> weakref.finalize:
    """Queue the communicator of ``context`` as dead when its Python object ``holder`` is deleted.

    ``handles`` are MPI communicators of the library alone, to be freed once the communicator is dead on all ranks.
    """
    finalizer = weakref.finalize(holder, _bury, os.getpid(), context, handles)
    finalizer.atexit = False  # MPI_Finalize frees the others
    return finalizer


def _bury(pid: int, context: Any, handles: list[MPI.Intracomm]) -> None:
    if os.getpid() != pid:
        return
    if context.broken is None:
        _buried.append((context.identity, context.size, handles, context))
    else:  # other ranks may still be in a call, and read this rank's memory
        keep(context)


def dead() -> list[tuple[str, int]]:
    """Identity and size of the communicators that are dead on this rank, and have no messages under way."""
    with _lock:
        while _buried:
            identity, size, handles, context = _buried.popleft()
            _dead[identity] = size, handles, context
        return [(identity, size) for identity, (size, _, context) in _dead.items() if not context.is_busy()]


def free_agreed(votes: Counter[tuple[str, int]]) -> None:
    """Free the communicators that are dead on all their ranks, in the same order on all ranks.

    ``votes`` has, for each result of :func:`dead`, the number of ranks that named it.
    """
    for identity in sorted(identity for (identity, size), count in votes.items() if count == size):
        with _lock:
            mine = _dead.pop(identity, None)
        if mine is not None:
            _, handles, context = mine
            if context.gpu is not None:  # what it has opened of other ranks' memory stays allocated there
                context.gpu.leave()
            if context.mpi_queries is not None:
                context.mpi_queries.close()
            for handle in handles:
                handle.Free()


def keep(what: Any) -> None:
    """Keep ``what`` to the end of the process, since MPI may still read or write its memory."""
    _kept.append(what)


# A forked child must not touch the operations that its parent has under way.
os.register_at_fork(after_in_child=lambda: _kept.extend(_core.leave_to_the_parent()))
