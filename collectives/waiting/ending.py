"""The end of the program: what is said, written and waited for then."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable

from ..core import _core
from ..diagnostics import exit_notes, peer_queries
from ..diagnostics.diagnosis import Answer
from ..errors import CollectiveError
from ..system import heap

__all__ = ["at_the_end", "forked", "refuse_if_forked", "say"]

LAST_CALL = 5_000_000_000  # ns that the end of the program waits for requests nobody waited for
TOLD = 64  # ranks of other machines that are told, for each communicator, that a program has ended

_at_the_end: list[Callable[[], None]] = []
_forked = False  # from a process that had MPI or a heap, which no other can take over


def _after_fork() -> None:
    global _forked
    _forked = _forked or heap.is_there() or "mpi4py.MPI" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


def say(how: str, failed: bool = False) -> None:
    """Say that this program makes no more calls, and how it ended.

    Those on other machines are told by messages, but only of a failure: where all programs end, nobody receives them,
    and MPI libraries warn of messages that nobody received.
    """
    contexts = [] if _forked else peer_queries.contexts()
    exit_notes.leave(how, {context.identity: context.begun for context in contexts})
    for context in contexts:
        context.gone = Answer(context.rank, None, context.begun, left=how)
        if failed and context.mpi_queries is not None and context.broken is None and not _core.ended():
            far = sorted(set(context.others()) - set(context.neighbours), key=context.distance)
            with contextlib.suppress(RuntimeError):  # MPI's, where one has died
                context.mpi_queries.tell(far[:TOLD])


@atexit.register
def _stop() -> None:
    if not _forked:
        say(exit_notes.ending(), failed=exit_notes.uncaught() is not None)
        try:
            for function in _at_the_end:
                function()
        finally:
            contexts = peer_queries.contexts()
            hopeless = any(context.broken and not context.abandoned for context in contexts)
            if not _core.ended() and any(context.misses_some() for context in contexts):
                _core.survived(False)
            _core.stop_progress(0 if hopeless else LAST_CALL)
            if not hopeless:
                _core.sweep()  # while there is an interpreter, which what owns a buffer may need


def at_the_end(function: Callable[[], None]) -> None:
    """Have it called when the program has ended, once the others can know that it has."""
    _at_the_end.append(function)


def forked() -> bool:
    """Whether this process was forked from one that had MPI or a heap, which no other can take over."""
    return _forked


def refuse_if_forked() -> None:
    """CollectiveError in a forked child, which has neither its parent's messages nor the other ranks' memory."""
    if _forked:
        raise CollectiveError("this process was forked from one that uses collectives; it cannot take part in them")
