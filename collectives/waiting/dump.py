"""A report of what this process waits for, printed on request of the program or on a signal."""

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

BOUND = 2.0  # seconds to wait for a function that may hang


def dump(file: TextIO | None = None) -> None:
    """Print what this process waits for, one line for each call under way on each communicator.

    A line has the call, its number and the ranks that it waits for and, if a thread waits for the call, file and line
    and the seconds waited. A broken communicator has a line with its error. If no call is under way, one line has the
    number of calls so far, and file and line. Lines are written to ``file``, by default standard error, if that can be
    written to. No message is sent, and any thread may call the function. The signal SIGUSR2 prints the report too, if
    the main thread has made a communicator and the program had no handler for that signal then.
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
        with contextlib.suppress(Exception):  # the program may have closed it, or put None in its place
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="backslashreplace"))
    else:
        file.write(text)


def bounded(function: Callable[[], Any], otherwise: Any = None) -> Any:
    """The result of ``function``, run in a thread of its own; ``otherwise`` if it raises or takes over 2 s.

    The result is ``otherwise``, too, if no thread can be started.
    """
    found = [otherwise]

    def run() -> None:
        with contextlib.suppress(Exception):
            found[0] = function()

    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return otherwise
    thread.join(BOUND)
    return found[0]


def _under_way(context: Any) -> list[str]:
    where = f"rank {context.rank} of {context.size} (communicator {context.identity})"
    waits, answer = context.oldest_first(), context.describe()
    if answer.failure is not None:
        return [f"{where}: broken: {context.broken}"]
    told = [f"{where}: {wait.run.call()}, at {position(wait.thread)}, {wait}" for wait in waits]
    if not waits and (running := context.listed()):  # on the fast path
        told.append(f"{where}: {running[0].run.call()}, at {answer.place}, waits")
    for operation in sorted(context.pending(), key=lambda one: one.call().number or 0):  # persistent calls have none
        if all(operation is not wait.run for wait in waits):
            ranks = ", ".join(map(str, operation.plan.waiting()))
            whom = f"rank {ranks}" if ranks else "no rank at present"
            told.append(f"{where}: {operation.call()}, non-blocking, under way, waits for {whom}")
    return told


def dump_on_signal() -> None:
    """Make SIGUSR2 call :func:`dump`, unless the program has a handler for it; only the main thread can set one."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL and not _caught(signal.SIGUSR2):
        signal.signal(signal.SIGUSR2, _asked)
        _core.count_signal(signal.SIGUSR2)


def _caught(number: int) -> bool:
    """Whether the system calls a function on this signal. Python does not know of those that were set in C."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


_answered = 0  # number of signals received when the last report was printed
_for_main: int | None = None  # that number if answer_for_main has printed it, and the handler has not run since
_pending = 0  # number of signals received when answer_for_main last looked


def _asked(*_: Any) -> None:
    """The handler. Once the program has replaced it for a while, signals are no longer counted."""
    global _answered, _for_main
    told, _for_main, _answered = _for_main, None, _core.signals()
    if told != _answered:
        with contextlib.suppress(Exception):  # the program has not asked for it
            dump()


def answer_for_main() -> None:
    """Print the report from this thread if the main thread has not done so since the last call of this function.

    The main thread runs no Python handler as long as it stays in C code. The tracebacks of all threads are printed too.
    """
    global _answered, _for_main, _pending
    came, before, _pending = _core.signals(), _pending, _core.signals()
    if came == before != _answered:
        _answered = _for_main = came
        bounded(dump)
        faulthandler.dump_traceback(2)
