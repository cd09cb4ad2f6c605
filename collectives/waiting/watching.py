"""Watching a call that does not end: do the processes that it waits for still run, and what do their ranks say?"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, NoReturn

from ..diagnostics.diagnosis import Answer, lines, missing, overdue, waiting_for
from ..diagnostics.peer_queries import PeerQuery
from ..errors import CollectiveError, PeerFailure
from .departures import Departures
from .host import Host

__all__ = ["LATELY", "Wait", "Watch", "asked_about"]

SLICE = 20_000_000  # ns between looks at signals, deadlines and peers
PATIENCE = 1.0, 8.0  # seconds between questions to the ranks waited for: at first, and at most; doubled each time
LATELY = 1_000_000_000  # ns for which a request that the program has tested is looked after
ASKED = 32  # most ranks looked at, or asked, at a time

_log = logging.getLogger("collectives")


def asked_about(run: Any) -> int | None:
    """The number of ``run`` as a call, which a question has so that a rank tells its own call of that number.

    None if the question has no number.
    """
    if getattr(run, "stands_for", None) is not None or getattr(run, "check", None) is not None:
        return None
    call = run.call()
    number: int | None = call.number if call.algorithm else None
    return number


class Watch:
    """Repeated checks of one call: in a long wait, where the program tests it, or while only MPI waits for it."""

    def __init__(self, context: Host, run: Any, timeout: float | None = None):
        self.context = context
        self.run = run
        self.begin = time.monotonic()
        self.behind = context.behind(run)
        self._pause = PATIENCE[0]
        self._due = self.begin + self._pause
        self._peer_query: PeerQuery | None = None
        self._departures = Departures(context)
        self.silence = context.stall if timeout is None else None  # seconds until a report; None: none is due
        self.looks = self._asks = 0
        self.next_look = 0  # monotonic time in ns, used where the program tests a request

    def look(self, progressing: Any) -> None:
        """Check once whether the call can still end.

        Raises PeerFailure if a rank has ended, CollectiveMismatch if one makes another call, and CollectiveError if one
        gave up.
        """
        context = self.context
        context.meanwhile()
        self.looks += 1
        if context.mpi_queries is not None:
            context.mpi_queries.serve()
        self.behind = context.behind(self.run)
        self._look_for_departures(progressing)
        for rank in self.behind or list(context.heard):
            if rank in context.heard:
                self._judge(context.heard[rank])
        now = time.monotonic()
        if self.silence is not None and now - self.begin > self.silence:
            self.silence = None
            self._warn(now - self.begin)
        if now >= self._due:
            self._pause = min(2 * self._pause, PATIENCE[1])
            self._due = now + self._pause
            self._peer_query = self._peer_query or PeerQuery(context, asked_about(self.run))
            self._peer_query.answers = dict(context.heard)
            self._peer_query.ask(_some(self.behind or context.others(), self._asks))
            self._asks += 1
        elif self._peer_query is not None:
            for answer in list(self._peer_query.collect().values()):
                self._judge(answer)

    def _look_for_departures(self, progressing: Any) -> None:
        """Raise PeerFailure if a rank has ended that the call waits for.

        A rank may end after it has done its part in the call, so the call is progressed once more before it fails. MPI
        does not say which ranks it waits for: after a long wait, any rank that has ended counts.
        """
        suspects = self.behind or self._of_mpi()
        for rank in _some(suspects, self.looks):
            why = self._why_not(rank)
            if why is not None and not progressing.wait(True, SLICE // 20):
                if rank in (self.context.behind(self.run) or self._of_mpi()):
                    self._raise(PeerFailure, why)

    def _of_mpi(self) -> list[int]:
        if self.run.plan is not None:
            return []
        return self.context.others() if self.run.ranks is None else self.run.ranks

    def _why_not(self, rank: int) -> str | None:
        since = getattr(self.run, "began", self.begin)
        surely = bool(self.behind) or time.monotonic() - since > PATIENCE[0]
        return self._departures.why_not(rank, self.run, surely)

    def _warn(self, seconds: float) -> None:
        told = self.context.parties(self.run, self.behind)
        place, names = self.context.place_of(self.run), waiting_for(missing(self.behind, told))
        _log.warning("%s: not complete after %.3g s; %s%s", place, seconds, names, lines(told))

    def _judge(self, answer: Answer) -> None:
        found = self.context.judged(self.run, answer)
        if found is not None:
            self._raise(*found)

    def _raise(self, kind: type[CollectiveError], why: str, origin: str | None = None) -> NoReturn:
        raise self.context.error_of(self.run, kind, why, origin, self.behind)

    def timed_out(self, timeout: float) -> CollectiveError:
        """The error of the call at its ``timeout`` (seconds): which ranks it waits for, and what they are doing."""
        context = self.context
        told = context.parties(self.run, self.behind)
        dead = [rank for rank in context.others() if context.has_ended(rank) or context.seems_ended(rank)]
        kind, why, origin = overdue(context.lateness(timeout), self.behind, told, dead)
        error = kind(f"{context.place_of(self.run)}: {why}{lines(told)}")
        error.origin = origin
        return error

    def close(self) -> None:
        """Release sockets and files; the call has ended or failed."""
        self._departures.close()
        if self._peer_query is not None:
            self._peer_query.close()


class Wait:
    """A call that a thread waits for; ``watch`` is set once the wait has taken longer than a slice.

    ``key`` identifies the wait without keeping its buffers in memory, for the watchdog. ``with Wait(run, timeout,
    context.waits):`` marks a part of the run that may hang in MPI, so that the watchdog sees it.
    """

    __slots__ = ("_listed", "calls_back", "key", "run", "thread", "timeout", "watch")

    def __init__(self, run: Any, timeout: float | None, listed: list[Wait]):
        self.calls_back = True  # the wait may run code of the program: an op, a signal handler
        self.key: object = object()
        self.run = run
        self.timeout = timeout
        self.thread = threading.get_ident()
        self.watch: Watch | None = None
        self._listed = listed

    def __enter__(self) -> None:
        self._listed.append(self)

    def __exit__(self, *_: object) -> None:
        if self in self._listed:  # a failure may have removed it
            self._listed.remove(self)

    def __str__(self) -> str:
        if self.watch is None:
            return "waits"
        waited = f"waits {time.monotonic() - self.watch.begin:.1f} s"
        ranks = ", ".join(map(str, self.watch.behind))
        return f"{waited} for rank {ranks}" if ranks else f"{waited}; MPI does not say for which ranks"


def _some(ranks: list[int], turn: int) -> list[int]:
    """At most ASKED of ``ranks``; successive values of ``turn`` give successive ranks, cyclically."""
    if len(ranks) <= ASKED:
        return ranks
    begin = turn * ASKED % len(ranks)
    return [*ranks, *ranks][begin : begin + ASKED]
