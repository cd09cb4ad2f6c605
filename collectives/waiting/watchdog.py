"""Waits that do not come back from MPI, so that the thread that waits cannot speak: another thread does.

MPI may keep a thread for ever: in a blocking collective, or in a send that looks for a process that has gone. No
exception reaches such a thread. Past its timeout, by a grace, the process says what the exception would have said,
and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import os
import sys
import threading
import time
from typing import Any

from mpi4py import MPI

from ..diagnostics import exit_notes, peer_queries
from ..diagnostics.diagnosis import Answer, foreign, lines, missing, overdue, position, waiting_for
from ..diagnostics.peer_queries import PeerQuery
from . import dump
from .dump import bounded
from .waiting import TOLD_OF
from .watching import Wait

__all__ = ["watch"]

TICK = 1.0  # seconds between looks
STILL = 3  # looks in a row at which a wait has not moved
GRACE = 5.0  # seconds beyond the timeout: what raises an error in order asks the others before, for up to two or three

_log = logging.getLogger("collectives")


class Seen:
    """A wait as it was at the last look."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.looks = self.still = 0
        self.told = self.mourned = False

    def look(self, wait: Wait) -> None:
        """Note whether the thread came by since the last time: it turns round every 20 ms."""
        watch = wait.watch
        looks = 0 if watch is None else watch.looks
        moves = looks != self.looks or wait.calls_back and _computes(wait.thread)
        self.still = 0 if moves else self.still + 1
        self.looks = looks
        if watch is not None:
            self.begin = min(self.begin, watch.begin)
            self.told = self.told or wait.timeout is None and watch.silence is None

    @property
    def stuck(self) -> bool:
        """Whether the thread is away, in a call that does not come back."""
        return self.still >= STILL

    def overdue(self, seconds: float | None) -> bool:
        """Whether the thread is away, and the wait longer than so many seconds."""
        return seconds is not None and self.stuck and time.monotonic() - self.begin > seconds


def _computes(thread: int) -> bool:
    """Whether a thread is in code of the program's, in an op or a handler of a signal, that is called from a wait."""
    frame = sys._current_frames().get(thread)
    return frame is None or not foreign(frame.f_code.co_filename)


@functools.cache
def watch() -> None:
    """Watch over the waits of this process, from the first call on."""
    threading.Thread(target=_serve, name="collectives-watchdog", daemon=True).start()


def _serve() -> None:
    seen: dict[object, Seen] = {}
    while True:
        time.sleep(TICK)
        seen = _look(seen)
        dump.answer_for_main()


def _look(before: dict[object, Seen]) -> dict[object, Seen]:
    """Look at all waits once; what is known of them now, and was ``before``, by their keys."""
    seen = {}
    for context in peer_queries.contexts():
        for wait in context.listed():
            known = seen[wait.key] = before.get(wait.key) or Seen()
            known.look(wait)
            if known.stuck and not known.mourned:
                known.mourned = _mourn(context, wait)
            if wait.timeout is not None and known.overdue(wait.timeout + GRACE):
                _end(context, wait)
            elif wait.timeout is None and not known.told and known.overdue(context.stall):
                known.told = True
                if wait.watch is not None:
                    wait.watch.silence = None
                _warn(context, wait, time.monotonic() - known.begin)
    return seen


def _behind(context: Any, wait: Wait) -> list[int]:
    if wait.watch is not None and wait.watch.behind:
        return wait.watch.behind
    plan = wait.run.plan
    return bounded(plan.waiting, []) if plan is not None else []


def _told(context: Any, wait: Wait, behind: list[int]) -> list[Answer]:
    """What this rank and its neighbours do, as in an error; nobody is asked by MPI."""
    mine = Answer(context.rank, wait.run.call(), context.begun, position(wait.thread))
    ranks = [*behind, *(rank for rank in context.others() if rank not in behind)]
    near = [rank for rank in ranks if rank in context.neighbours][: TOLD_OF - 1]

    def ask() -> list[Answer]:
        with PeerQuery(context, mpi_queries=False) as asking:
            return asking.settle(near, again=False)

    return [mine, *bounded(ask, [])]


def _dead_here(context: Any, ranks: list[int]) -> list[int]:
    """Those whose processes ran on this machine, and have ended."""
    return [rank for rank, peer in context.neighbours.items() if rank in ranks and not peer_queries.alive(peer)]


def _dead(context: Any, ranks: list[int]) -> list[int]:
    """Those whose processes have ended, as this machine and theirs say."""
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
    """Say, long before the timeout, that processes have ended on which MPI may wait; whether there was one."""
    dead = _dead_here(context, context.others())
    if dead:  # only then is it asked whom the wait waits for, which may take long where MPI keeps a lock
        some = wait.run.ranks if wait.run.plan is None else None
        asked = _behind(context, wait) or some or dead
        dead = [rank for rank in dead if rank in asked]
    if dead:
        _log.warning(
            "%s: in a call of MPI's that does not come back; the process of rank %s has ended%s",
            context.place_of(wait.run), ", ".join(map(str, dead)), lines(_told(context, wait, dead)),
        )  # fmt: skip
    return bool(dead)


def _end(context: Any, wait: Wait) -> None:
    """Say what the wait's error would have said, and where all threads are; then end the process, if need be alone."""
    behind = _behind(context, wait)
    told = _told(context, wait, behind)
    dead = _dead(context, missing(behind, told) if behind else context.others())
    kind, why, _ = overdue(context.lateness(wait.timeout), behind, told, dead)
    place = context.place_of(wait.run)
    if all(other.key != wait.key for other in context.listed()):  # it came back after all
        return
    stuck = "stuck in a call of MPI's that does not come back, so this process ends"
    text = f"{kind.__name__}: {place}: {why}; {stuck}{lines(told)}\n"
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, f"collectives: {text}".encode())
        faulthandler.dump_traceback(2)
    exit_notes.leave(f"was stuck in a call of MPI's in {place}", {context.identity: context.begun})
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        bounded(lambda: MPI.COMM_WORLD.Abort(1))
    os._exit(1)
