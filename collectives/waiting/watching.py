"""A call that is waited for in vain: whether the processes that it waits for still run, and what their ranks say."""

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

__all__ = ["Wait", "Watch", "asked_about"]

SLICE = 20_000_000  # ns between looks at signals, deadlines and peers
PATIENCE = 1.0, 8.0  # seconds until those waited for are asked, doubled from time to time up to the latter
ASKED = 32  # ranks looked at, or asked, at a time

_log = logging.getLogger("collectives")


def asked_about(run: Any) -> int | None:
    """The number by which other ranks are asked about a run."""
    if getattr(run, "stands_for", None) is not None:
        return None
    call = run.call()
    number: int | None = call.number if call.algorithm else None
    return number


class Watch:
    """A call that has been waited for longer than a slice."""

    def __init__(self, context: Host, run: Any, timeout: float | None = None):
        self.context = context
        self.run = run
        self.begin = time.monotonic()
        self.behind = context.behind(run)
        self._pause = PATIENCE[0]
        self._due = self.begin + self._pause
        self._peer_query: PeerQuery | None = None
        self._departures = Departures(context)
        self.silence = context.stall if timeout is None else None  # seconds until it is reported, unless it has been
        self.looks = self._asks = 0
        self.next_look = 0  # of the monotonic clock, in ns, where the program tests a request

    def look(self, progressing: Any) -> None:
        """Raise what will keep the call from ending, if something is known by now."""
        context = self.context
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
        """A rank may have ended after its part in the call: only one that is still waited for then has failed.

        MPI does not say whom it waits for; any rank will do that is gone when it has waited for long.
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
        """The time is over: who is waited for, and what they do."""
        context = self.context
        told = context.parties(self.run, self.behind)
        dead = [rank for rank in context.others() if context.has_ended(rank) or context.seems_ended(rank)]
        kind, why, origin = overdue(context.lateness(timeout), self.behind, told, dead)
        error = kind(f"{context.place_of(self.run)}: {why}{lines(told)}")
        error.origin = origin
        return error

    def close(self) -> None:
        """It has ended, one way or the other."""
        self._departures.close()
        if self._peer_query is not None:
            self._peer_query.close()


class Wait:
    """A call that a thread waits for; ``watch`` once it has done so for longer than a slice.

    ``key`` is equal to that of no other wait, for those who look at it from time to time but must not keep its buffers.
    ``with Wait(run, timeout, context.waits):`` a part of the run that may hang in MPI, which nobody looks at meanwhile.
    """

    __slots__ = ("_listed", "calls_back", "key", "run", "thread", "timeout", "watch")

    def __init__(self, run: Any, timeout: float | None, listed: list[Wait]):
        self.calls_back = True  # it may run code of the program's: an op, a handler of a signal
        self.key: object = object()
        self.run = run
        self.timeout = timeout
        self.thread = threading.get_ident()
        self.watch: Watch | None = None
        self._listed = listed

    def __enter__(self) -> None:
        self._listed.append(self)

    def __exit__(self, *_: object) -> None:
        if self in self._listed:  # no failure has removed it
            self._listed.remove(self)

    def __str__(self) -> str:
        if self.watch is None:
            return "waits"
        ranks = ", ".join(map(str, self.watch.behind)) or "whom MPI does not say"
        return f"waits {time.monotonic() - self.watch.begin:.1f} s for rank {ranks}"


def _some(ranks: list[int], turn: int) -> list[int]:
    """So many of some ranks as are looked at together; at the next turn the next ones, round and round."""
    if len(ranks) <= ASKED:
        return ranks
    begin = turn * ASKED % len(ranks)
    return [*ranks, *ranks][begin : begin + ASKED]
