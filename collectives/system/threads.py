"""Threads of the library that leave signals to the program."""

from __future__ import annotations

import signal
import threading

__all__ = ["start_without_signals"]

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT}


def start_without_signals(thread: threading.Thread) -> None:
    """Start a thread that blocks all signals, except those of its own faults.

    Signals of the process are for the program's threads, which may block them and wait for one: a thread that does not
    block it would get it instead, and its default action ends the process. A thread that runs code of the program must
    not be started like this, since processes that it starts inherit what is blocked.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        thread.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
