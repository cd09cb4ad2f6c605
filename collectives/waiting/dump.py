"""What this process waits for, told when the program or a signal asks."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import position

__all__ = ["answer_for_main", "bounded", "dump", "dump_on_signal"]

BOUND = 2.0  # seconds that what may hang is waited for


def dump(file: TextIO | None = None) -> None:
    """Print what this process waits for: for each communicator the call, its number, seconds, ranks, file and line.

    To ``file``, by default standard error. A local call, for any thread. The signal SIGUSR2 does the same, where the
    program has no handler for it when it makes its first communicator.
    """
    contexts = list(peer_queries.contexts())
    told = [text for context in contexts for text in _under_way(context)]
    if not told:
        calls = sum(context.begun for context in contexts)
        told = [f"in no collective, after {calls} calls, at {position()}"]
    mpi = getattr(sys.modules.get("mpi4py"), "MPI", None)
    running = mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
    mark = f"[rank {mpi.COMM_WORLD.rank}] " if mpi is not None and running else ""
    text = "".join(f"{mark}{line}\n" for line in told)
    if file is None:
        sys.stderr.flush()
        os.write(2, text.encode())
    else:
        file.write(text)


def bounded(function: Callable[[], Any], otherwise: Any = None) -> Any:
    """What a function returns that may hang, or fail; ``otherwise`` where it does."""
    found = [otherwise]

    def run() -> None:
        with contextlib.suppress(Exception):
            found[0] = function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(BOUND)
    return found[0]


def _under_way(context: Any) -> list[str]:
    where = f"rank {context.rank} of {context.size} (communicator {context.identity})"
    waits, answer = context.oldest_first(), context.describe()
    if answer.failure is not None:
        return [f"{where}: broken: {context.broken}"]
    told = [f"{where}: {wait.run.call()}, at {position(wait.thread)}, {wait}" for wait in waits]
    if answer.call is not None and not waits:
        told.append(f"{where}: {answer.call}, at {answer.place}, waits")
    for operation in _core.queued(context):
        if not operation.done and all(operation is not wait.run for wait in waits):
            ranks = ", ".join(map(str, operation.plan.waiting()))
            told.append(f"{where}: {operation.call()}, non-blocking, under way, waits for rank {ranks}")
    return told


def dump_on_signal() -> None:
    """Have SIGUSR2 call :func:`dump`, in the main thread, unless the program has a handler of its own."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
        signal.signal(signal.SIGUSR2, _asked)
        _core.count_signal(signal.SIGUSR2)


_answered = 0  # of the signals that came
_pending = 0  # those that had come at the last look


def _asked(*_: Any) -> None:
    global _answered
    if _answered != _core.signals():
        _answered = _core.signals()
        dump()


def answer_for_main() -> None:
    """Answer a signal that the main thread has not answered since the last look, as it does not come back to Python.

    With the places of all threads: those that are in C code say no more than that.
    """
    global _answered, _pending
    came, before, _pending = _core.signals(), _pending, _core.signals()
    if came == before != _answered:
        _answered = came
        bounded(dump)
        faulthandler.dump_traceback(2)
