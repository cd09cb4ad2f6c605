"""A thread that watches for waits from which MPI does not return, so that the waiting thread can raise no error.

MPI may keep a thread for ever: in a blocking collective, or in a send to a process that has ended. No exception
reaches such a thread. When such a wait is past its timeout by a grace period, this thread prints the message that the
exception would have had, and ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..core import _core
from ..diagnostics import exit_notes, peer_queries
from ..diagnostics.diagnosis import Answer, activity, lines, missing, overdue, position, waiting_for
from ..diagnostics.peer_queries import PeerQuery
from ..errors import brief
from ..system.threads import start_without_signals
from . import dump
from .dump import bounded
from .unattended import Unattended
from .waiting import TOLD_OF
from .watching import Wait

__all__ = ["watch"]

TICK = 1.0  # seconds between looks
READ = 1.0  # seconds before MPI_Abort: launchers drop output that they have not read by then
STILL = 3  # looks in a row without progress after which a thread counts as stuck
GRACE = 5.0  # seconds beyond the timeout; a thread that can raise asks other ranks first, for up to 2 or 3 s

_log = logging.getLogger("collectives")


class Seen:
    """The state of a wait at the watchdog's last look."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.looks = self.still = 0
        self.spot: object = None  # where the thread was in its program
        self.told = self.mourned = False

    def look(self, wait: Wait, computes: bool, spot: object) -> bool:
        """Record the wait's state, and return whether the waiting thread has progressed since the last look.

        A wait loops every 20 ms. If that does not show progress, the thread may have run Python code, or does so now:
        ``computes`` and ``spot`` are what :func:`~collectives.diagnostics.diagnosis.activity` says of it.
        """
        watch = wait.watch
        looks = 0 if watch is None else watch.looks
        moves = looks != self.looks or spot != self.spot or wait.calls_back and computes
        self.looks, self.spot = looks, spot
        if watch is not None:
            self.begin = min(self.begin, watch.begin)
            self.told = self.told or wait.timeout is None and watch.silence is None
        return moves

    @property
    def stuck(self) -> bool:
        """Whether the thread is in a call of MPI's that does not return."""
        return self.still >= STILL

    def overdue(self, seconds: float | None) -> bool:
        """Whether the thread is stuck and has waited for more than ``seconds``; False for None."""
        return seconds is not None and self.stuck and time.monotonic() - self.begin > seconds


@functools.cache
def watch() -> None:
    """Start the thread that watches the waits of this process; further calls have no effect."""
    start_without_signals(threading.Thread(target=_serve, name="collectives-watchdog", daemon=True))


def _serve() -> None:
    tasks: list[Callable[[], None]] = [functools.partial(_look, {}), dump.answer_for_main]
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        tasks.append(Unattended().look)
    failed: set[str] = set()
    while True:
        time.sleep(TICK)
        for task in tasks:
            _try(task, failed)


def _try(task: Callable[[], None], failed: set[str]) -> None:
    """Call ``task``; log an exception of a kind that is not in ``failed`` yet. Memory may be short only for now."""
    try:
        task()
    except Exception as e:
        if brief(e) not in failed:
            failed.add(brief(e))
            _log.warning("a look at the waits of this process failed: %s", brief(e))


def _look(seen: dict[object, Seen]) -> None:
    """Look at all waits once; ``seen`` are their states by key, as of the last look and then as of this one."""
    waits = [(context, wait) for context in peer_queries.contexts() for wait in context.listed()]
    once = {wait.key: wait for _, wait in waits}  # some are listed twice
    now = {key: seen.get(key) or Seen() for key in once}
    seen.clear()
    seen.update(now)
    acts = activity({wait.thread for wait in once.values()}) if waits else {}
    # The wait of a signal handler progresses, and the one that it interrupts does not: both are the thread's.
    busy = {wait.thread for key, wait in once.items() if now[key].look(wait, *acts[wait.thread])}
    for key, wait in once.items():
        now[key].still = 0 if wait.thread in busy else now[key].still + 1
    for context, wait in waits:
        known = now[wait.key]
        if known.stuck and not known.mourned:
            known.mourned = _mourn(context, wait)
        if wait.timeout is not None and known.overdue(wait.timeout + GRACE):
            _end(context, wait)
        elif wait.timeout is None and not known.told and known.overdue(context.stall):
            known.told = True
            if wait.watch is not None:
                wait.watch.silence = None
            _warn(context, wait, time.monotonic() - known.begin)


def _behind(context: Any, wait: Wait) -> list[int]:
    if wait.watch is not None and wait.watch.behind:
        return wait.watch.behind
    plan = wait.run.plan
    return bounded(plan.waiting, []) if plan is not None else []


def _told(context: Any, wait: Wait, behind: list[int]) -> list[Answer]:
    """What this rank and its neighbours are doing, for a message; no question is sent through MPI."""
    mine = Answer(context.rank, wait.run.call(), context.begun, position(wait.thread))
    ranks = [*behind, *(rank for rank in context.others() if rank not in behind)]
    near = [rank for rank in ranks if rank in context.neighbours][: TOLD_OF - 1]

    def ask() -> list[Answer]:
        with PeerQuery(context, mpi_queries=False) as asking:
            return asking.settle(near, again=False)

    return [mine, *bounded(ask, [])]


def _dead_here(context: Any, ranks: list[int]) -> list[int]:
    """Those of ``ranks`` whose processes ran on this machine and have ended."""
    return [rank for rank, peer in context.neighbours.items() if rank in ranks and not peer_queries.alive(peer)]


def _dead(context: Any, ranks: list[int]) -> list[int]:
    """Those of ``ranks`` whose processes have ended, according to this machine or to their own."""
    near = _dead_here(context, ranks)
    far = bounded(lambda: context.mpi_queries.closed(ranks), []) if context.mpi_queries is not None else []
    return sorted({*near, *far})


def _warn(context: Any, wait: Wait, seconds: float) -> None:
    behind = _behind(context, wait)
    told = _told(context, wait, behind)
    names = waiting_for(missing(behind, told))
    _log.warning(
        "%s: not complete after %.3g s, in a call of MPI's that does not come back; %s%s",
        context.place_of(wait.run), seconds, names, lines(told),
    )  # fmt: skip


def _mourn(context: Any, wait: Wait) -> bool:
    """Warn, long before the timeout, of ended processes for which MPI may wait; return whether there was one."""
    dead = _dead_here(context, context.others())
    if dead:  # only now, since _behind may take long while MPI holds a lock
        some = wait.run.ranks if wait.run.plan is None else None
        asked = _behind(context, wait) or some or dead
        dead = [rank for rank in dead if rank in asked]
    if dead:
        _log.warning(
            "%s: in a call of MPI's that does not come back; the process of rank %s has ended%s",
            context.place_of(wait.run), ", ".join(map(str, dead)), lines(_told(context, wait, dead)),
        )  # fmt: skip
    return bool(dead)


def _abort() -> None:
    """MPI_Abort of all ranks, for up to 2 s; if no thread can be started for that, a signal ends the process after 4 s.

    mpi4py's keeps the interpreter's lock, also while MPI keeps the call.
    """
    thread = threading.Thread(target=_core.abort, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        _core.abort()
    else:
        thread.join(dump.BOUND)


def _end(context: Any, wait: Wait) -> None:
    """Print the wait's error message and all threads' tracebacks, then end the process, by MPI_Abort if possible."""
    behind = _behind(context, wait)
    told = _told(context, wait, behind)
    dead = _dead(context, missing(behind, told) if behind else context.others())
    kind, why, _ = overdue(context.lateness(wait.timeout), behind, told, dead)
    place = context.place_of(wait.run)
    if all(other.key != wait.key for other in context.listed()):  # MPI has returned meanwhile
        return
    stuck = "stuck in a call of MPI's that does not come back, so this process ends"
    text = f"{kind.__name__}: {place}: {why}; {stuck}{lines(told)}\n"
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, f"collectives: {text}".encode(errors="backslashreplace"))
        faulthandler.dump_traceback(2)
    exit_notes.leave(f"was stuck in a call of MPI's in {place}", {context.identity: context.begun})
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        time.sleep(READ)
        _abort()
    os._exit(1)
