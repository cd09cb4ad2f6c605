"""What this process does when the program ends: it tells other ranks, and completes or gives up its requests."""

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

__all__ = ["at_the_end", "finalizing", "forked", "refuse_if_forked", "say"]

LAST_CALL = 5_000_000_000  # ns to wait, at the end of the program, for requests that are not complete
TOLD = 64  # most ranks of other machines that are told of a failed program, for each communicator

_at_the_end: list[Callable[[], None]] = []
_forked = False  # whether a parent process had MPI or a heap; a child can use neither


def _after_fork() -> None:
    global _forked
    _forked = _forked or heap.is_there() or "mpi4py.MPI" in sys.modules


os.register_at_fork(after_in_child=_after_fork)


def say(how: str, failed: bool = False) -> None:
    """Tell other ranks that this program makes no more calls; ``how`` says how it ended.

    Ranks of this machine read that in a note. Ranks on other machines are told by messages, and only if the program has
    ``failed``: when all programs end, nobody receives messages, and MPI libraries warn of unreceived ones.
    """
    contexts = [] if _forked else peer_queries.contexts()
    begun: dict[str, int] = {}
    for context in contexts:  # a wait for ranks whose communicator was being made has the identity of another
        begun[context.identity] = max(context.begun, begun.get(context.identity, 0))
    exit_notes.leave(how, begun)
    for context in contexts:
        context.gone = Answer(context.rank, None, context.begun, left=how)
        if failed and context.mpi_queries is not None and context.broken is None and not _core.ended():
            far = sorted(set(context.others()) - set(context.neighbours), key=context.distance)
            with contextlib.suppress(RuntimeError):  # raised by MPI if a rank has died
                context.mpi_queries.tell(far[:TOLD])


def finalizing() -> None:
    """What to do in MPI_Finalize that the program calls itself."""
    say(exit_notes.finalizing())
    _watch_neighbours()


def _watch_neighbours() -> None:
    """Have MPI_Finalize ended if it hangs because a rank of this machine dies meanwhile, in a job that goes on then."""
    if "mpi4py.MPI" not in sys.modules or _core.ended():
        return
    from ..system import mpi_library

    if mpi_library.why_no_survivors() is None:
        for pid in {near.pid for context in peer_queries.contexts() for near in context.neighbours.values()}:
            _core.watch_process(pid)


@atexit.register
def _stop() -> None:
    if not _forked:
        failed = exit_notes.uncaught() is not None
        say(exit_notes.ending(), failed=failed)
        _core.ends_with(int(failed))
        try:
            for function in _at_the_end:
                function()
        finally:
            contexts = peer_queries.contexts()
            hopeless = any(context.broken and not context.abandoned for context in contexts)
            if not _core.ended() and (any(context.misses_some() for context in contexts) or _replaces_a_rank()):
                _core.survived(False)
            _watch_neighbours()
            for context in contexts:  # nobody waits for these receives any more
                context.give_up_messages(receives_only=True)
            _core.stop_progress(0 if hopeless else LAST_CALL)
            if not hopeless:
                _core.sweep()  # now, since the release of a buffer may need the interpreter
            if not hopeless and not _core.ended():
                for context in contexts:
                    if context.mpi_queries is not None:
                        context.mpi_queries.drain()


def _replaces_a_rank() -> bool:
    """Whether MPI started this process for a program that goes on when a rank dies.

    MPI_Finalize then disconnects it from those that started it, and waits for ever for one that has died or left.
    """
    if "mpi4py.MPI" not in sys.modules:
        return False
    from mpi4py import MPI

    from ..system import mpi_library

    return mpi_library.why_no_survivors() is None and MPI.Comm.Get_parent() != MPI.COMM_NULL


def at_the_end(function: Callable[[], None]) -> None:
    """Have ``function`` called at the end of the program, after other ranks were told of that end."""
    _at_the_end.append(function)


def forked() -> bool:
    """Whether this process was forked from one that had MPI or a heap; the child can use neither."""
    return _forked


def refuse_if_forked() -> None:
    """Raise CollectiveError in a forked child, which has neither its parent's MPI nor the memory of other ranks."""
    if _forked:
        raise CollectiveError("this process was forked from one that uses collectives; it cannot take part in them")
