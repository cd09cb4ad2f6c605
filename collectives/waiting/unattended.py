"""Watching of non-blocking calls that no thread waits for in this library.

MPI's own waits for a request (``MPI.Request.Waitall`` and its variants) look for nobody and raise no CollectiveError.
So a thread looks once a second at the oldest non-blocking call of each communicator. It ends a call that cannot
complete, because a rank that it waits for has ended or makes another call. The error is logged, and MPI's wait raises
MPI.Exception. A later ``Wait`` of the request raises the error itself.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

from ..core import _core
from ..diagnostics import peer_queries
from ..errors import CollectiveError
from . import ending
from .watching import LATELY, Watch

__all__ = ["Unattended"]

LAST_LOOK = 2.0  # seconds that the end of the program waits for a look

_log = logging.getLogger("collectives")


class Unattended:
    """The non-blocking calls of this process that no thread waits for in the library."""

    def __init__(self) -> None:
        self._watches: dict[tuple[Any, int], Watch] = {}  # by operation and the tick at which it was begun
        self._beats = -1  # _core.main_beats() at the last look
        self._still = 0.0  # since when the main thread is in a C function
        self._thread: threading.Thread | None = None
        self._looks = threading.Lock()
        self._over = False
        ending.at_the_end(self._end)

    def look(self) -> None:
        """Look at the calls in a thread of its own, since MPI may keep that thread for ever."""
        if not self._over and (self._watches or _core.queued()):
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, name="collectives-unattended", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads for now, or at the end of the interpreter
                    self._thread.start()

    def _end(self) -> None:
        """At the end of the program: look no more, since MPI cannot be called after MPI_Finalize."""
        self._over = True
        if self._looks.acquire(timeout=LAST_LOOK):
            self._watches.clear()
            self._looks.release()

    def _look(self) -> None:
        with self._looks:
            if self._over or _core.ended():
                return
            self._look_at_main()
            before, self._watches = self._watches, {}
            for context in peer_queries.contexts():
                operation = _oldest(context)
                if operation is not None:
                    key = operation, operation.begin
                    watch = self._watches[key] = before.pop(key) if key in before else Watch(context, operation)
                    if watch.silence is not None:  # a report is due only if the main thread may be waiting, too
                        watch.silence = context.stall + max(0.0, self._still - watch.begin)
                    _judge(context, operation, watch)
                    self._look_at_timeouts(context)
            for watch in before.values():
                watch.close()

    def _look_at_timeouts(self, context: Any) -> None:
        """End the call for which MPI has waited longer than the communicator's timeout: it need not be the oldest."""
        for operation in context.pending() if context.timeout is not None and context.broken is None else []:
            if operation.waited_in_mpi(self._still) > context.timeout:
                with contextlib.closing(Watch(context, operation, context.timeout)) as watch:
                    _judge(context, operation, watch, context.timeout)
                return

    def _look_at_main(self) -> None:
        """Record since when the main thread is in a C function: it may wait in MPI."""
        beats = _core.main_beats()
        if beats != self._beats:
            self._beats, self._still = beats, time.monotonic()


def _judge(context: Any, operation: _core.Operation, watch: Watch, timeout: float | None = None) -> None:
    """Look at one call, and end it if it cannot complete, or if ``timeout`` seconds are over."""
    begin = operation.begin
    try:
        watch.look(operation)
        if timeout is not None:
            raise watch.timed_out(timeout)
    except Exception as e:
        if operation.done or operation.begin != begin or context.broken is not None:
            return  # it has ended meanwhile, perhaps with an error of its own, which its wait raises
        if not isinstance(e, CollectiveError):
            raise
        _log.error("%s: %s", type(e).__name__, e)  # first, since the program may end as soon as MPI's wait does
        if operation.done or operation.begin != begin:  # now, and a persistent call may have been started again
            return
        operation.failure = e
        operation.withdraw()
        if operation.error() is not None:  # else it has just completed
            context.note(operation, e)


def _oldest(context: Any) -> Any:
    """The oldest non-blocking call of a communicator; None if it is tested, or if a thread waits in the library."""
    if context.broken is not None or context.gone is not None or context.listed():
        return None
    operation = context.oldest_pending()
    tests = context.tested.get(operation)  # the program's own tests look, too
    return operation if tests is None or time.monotonic_ns() - tests.next_look > LATELY else None
