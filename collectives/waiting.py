"""How a communicator waits for its calls, and what becomes of those that do not end.

A call that has been waited for in vain for a slice of time is watched: whether the processes that it waits for still
run, and, from the first second on, what their ranks say they are doing.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from . import _core, ending, inquiry, lifetime, turns
from .departures import Departures
from .diagnosis import Answer, differ, lines, missing, overdue, position, verdict, waiting_for
from .errors import CollectiveError, CollectiveMismatch, PeerFailure
from .flight import Flight
from .giving_up import GivingUp
from .inquiry import Inquiry

__all__ = ["TOLD_OF", "Wait", "Waiting"]

SLICE = 20_000_000  # ns between looks at signals, deadlines and peers
PATIENCE = 1.0, 8.0  # seconds until those waited for are asked, doubled from time to time up to the latter
ASKED = 32  # ranks looked at, or asked, at a time
TOLD_OF = 64  # ranks that are asked for a message, this one among them
NOTICE = 1.0  # seconds by which MPI may know of a death before the system does: files are closed first


_ENGINE = _core.Node, _core.NodePlan, _core.NodeCall  # which see for themselves that a rank gave up
_log = logging.getLogger("collectives")


def _asked(run: Any) -> int | None:
    """The number by which other ranks are asked about a run."""
    if getattr(run, "stands_for", None) is not None:
        return None
    call = run.call()
    number: int | None = call.number if call.algorithm else None
    return number


class Watch:
    """A call that has been waited for longer than a slice."""

    def __init__(self, context: Waiting, run: Any, timeout: float | None = None):
        self.context = context
        self.run = run
        self.begin = time.monotonic()
        self.behind = context.behind(run)
        self._pause = PATIENCE[0]
        self._due = self.begin + self._pause
        self._inquiry: Inquiry | None = None
        self._departures = Departures(context)
        self.silence = context.stall if timeout is None else None  # seconds until it is reported, unless it has been
        self.looks = self._asks = 0

    def look(self, progressing: Any) -> None:
        """Raise what will keep the call from ending, if something is known by now."""
        context = self.context
        self.looks += 1
        if context.letters is not None:
            context.letters.serve()
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
            self._inquiry = self._inquiry or Inquiry(context, _asked(self.run))
            self._inquiry.answers = dict(context.heard)
            self._inquiry.ask(_some(self.behind or context.others(), self._asks))
            self._asks += 1
        elif self._inquiry is not None:
            for answer in list(self._inquiry.collect().values()):
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
        found = verdict(self.run.call(), answer)
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
        if self._inquiry is not None:
            self._inquiry.close()


class Wait:
    """A call that a thread waits for; ``watch`` once it has done so for longer than a slice."""

    __slots__ = ("__weakref__", "run", "thread", "timeout", "watch")

    def __init__(self, run: Any, timeout: float | None):
        self.run = run
        self.timeout = timeout
        self.thread = threading.get_ident()
        self.watch: Watch | None = None

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


class Waiting(GivingUp):
    """What :class:`collectives.context.Context` does while it waits; mixed into it."""

    rank: int
    size: int
    identity: str
    timeout: float | None
    yield_at_once: bool
    neighbours: dict[int, inquiry.Address]
    letters: Any  # where some ranks are on other machines
    elsewhere = 0  # calls that were MPI's or a schedule's, less exchanges before calls
    log: _core.Log | None = None  # where a timeline is recorded
    turn: _core.Turn
    waits: list[Wait]  # under way, of all threads; one may begin within another, in a handler of a signal
    failed: Answer | None = None
    tested: tuple[Any, Watch] | None = None  # a call that is tested again and again
    _next_glance = 0  # of the monotonic clock, in ns
    left: dict[int, Answer]  # those elsewhere whose programs have ended, as they told
    stall: float | None = None  # seconds after which a wait without a timeout is reported
    gone: Answer | None = None  # this rank, when its program has ended

    @property
    def begun(self) -> int:
        """Calls begun on this communicator, those of persistent requests apart: the same on all ranks between them."""
        return self.elsewhere + (self.node.calls if self.node is not None else 0)

    def count(self, calls: int) -> None:
        """Note that there were so many more calls that were not the engine's."""
        self.elsewhere += calls
        if self.log is not None:
            self.log.elsewhere = self.elsewhere

    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def behind(self, run: Any) -> list[int]:
        """Ranks that a run waits for, itself or behind others; empty where nobody knows."""
        if run.plan is None:
            return []
        return sorted(run.plan.waiting() or {rank for f in Flight.of(self) for rank in f.run.plan.waiting()})

    def distance(self, rank: int) -> int:
        """How far a rank is from this one, counted round."""
        return min((rank - self.rank) % self.size, (self.rank - rank) % self.size)

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended."""
        peer = self.neighbours.get(rank)
        return peer is not None and not inquiry.alive(peer)

    def has_gone(self, rank: int) -> bool:
        """Whether the process or the program of a rank is known to have ended."""
        return self.has_ended(rank) or rank in self.left or inquiry.left(self, rank) is not None

    def seems_ended(self, rank: int) -> bool:
        """Whether the machine of a rank that was asked in vain says that its process has ended."""
        return self.letters is not None and self.letters.refused(rank)

    def end_of(self, rank: int) -> str:
        """Words for a rank whose process is known to have ended."""
        peer = self.neighbours.get(rank)
        return "MPI says that its process has ended" if peer is None else f"its process {peer.pid} has ended"

    def misses_some(self) -> bool:
        """Whether some ranks will not come to MPI_Finalize, as far as is known."""
        return bool(self.dead(0.0)) or self.letters is not None and self.letters.any_refused()

    def lateness(self, timeout: float) -> str:
        """Words for a call that has taken too many seconds."""
        return f"not complete after {timeout:g} s"

    def place_of(self, run: Any) -> str:
        """Words for a run of this rank."""
        return f"{run} on rank {self.rank} of {self.size}"

    def wait(self, run: Any, progressing: Any, timeout: float | None = None) -> None:
        """Progress a run to its end, or to the timeout (default: the communicator's)."""
        timeout = self.timeout if timeout is None else timeout
        limit = SLICE if timeout is None else min(SLICE, int(timeout * 1e9))
        wait = Wait(run, timeout)
        self.waits.append(wait)
        if not progressing.wait(self.yield_at_once, limit):
            self._go_on(wait, progressing, timeout, limit)
        if (self.heard or self.node is not None and self.node.given_up) and not isinstance(run.plan, _ENGINE):
            self.look_for_quitters(run)
        self.waits.remove(wait)

    @contextlib.contextmanager
    def within(self, run: Any, timeout: float | None) -> Iterator[None]:
        """A part of a run that may hang in MPI, and that nobody looks at meanwhile."""
        wait = Wait(run, timeout)
        self.waits.append(wait)
        try:
            yield
        finally:
            if wait in self.waits:  # it has not failed
                self.waits.remove(wait)

    def _go_on(self, wait: Wait, progressing: Any, timeout: float | None, limit: int) -> None:
        wait.watch = watch = Watch(self, wait.run, timeout)
        deadline = None if timeout is None else watch.begin + timeout - limit * 1e-9
        try:
            self.look_for_quitters(wait.run)
            while deadline is None or time.monotonic() < deadline:
                watch.look(progressing)
                if progressing.wait(self.yield_at_once, limit):
                    return
            error = watch.timed_out(timeout or 0)
            if not progressing.wait(self.yield_at_once, 0):  # who was late may have come while it was asked
                raise error
        finally:
            watch.close()

    def oldest_first(self) -> list[Wait]:
        """What threads wait for, in the order of the calls' numbers, which is that in which they end."""
        return sorted(self.waits, key=lambda wait: wait.run.call().number or sys.maxsize)

    def take_turn(self) -> None:
        """Begin a call; CollectiveError where one is under way in this process. ``turn.give`` at its end."""
        if not self.turn.take():
            turns.refuse(self)
            self.turn.take()

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """One call, from :meth:`take_turn` on."""
        self.take_turn()
        try:
            yield
        finally:
            self.turn.give()

    def check_turn(self) -> None:
        """CollectiveError where a blocking call is under way in this process: no other may begin."""
        self.take_turn()
        self.turn.give()

    def glance(self, run: Any, progressing: Any) -> None:
        """Look, every slice at most, whether a call that is tested again and again can still end."""
        now = time.monotonic_ns()
        if now < self._next_glance:
            return
        self._next_glance = now + SLICE
        tested = self.tested
        if tested is None or tested[0] is not progressing:
            self.end_glances()
            tested = self.tested = progressing, Watch(self, run, float("inf"))
        tested[1].look(progressing)

    def end_glances(self) -> None:
        """The call that was tested has ended, or another one is."""
        tested, self.tested = self.tested, None
        if tested is not None:
            tested[1].close()

    # When a call fails

    def error_of(
        self, run: Any, kind: type[CollectiveError], why: str, origin: str | None, behind: list[int]
    ) -> CollectiveError:  # fmt: skip
        """The error of a run, with what all ranks do; first of all those that it waits for."""
        error = kind(f"{self.place_of(run)}: {why}{lines(self.parties(run, behind))}")
        error.origin = origin
        return error

    def describe(self, thread: int | None = None, number: int | None = None) -> Answer:
        """What this rank does on this communicator, as it tells those who ask; and what its call of a number was."""
        known = self.failed or self.gone
        if known is not None:
            return known
        waits, call = self.oldest_first(), None
        if waits:
            call, thread = waits[0].run.call(), waits[0].thread
        elif self.node is not None and self.node.pending:  # the short way, for less than a slice
            call = self.short_call().call()
        then = None if number is None or number > self.begun else self.call_of(number)
        return Answer(self.rank, call, self.begun, position(thread), then=then)

    def check(self) -> None:
        """Refuse work where it cannot be done any more; CollectiveError says why."""
        if self.broken is not None:
            raise CollectiveError(f"this communicator is broken since an earlier call failed ({self.broken})")
        if ending.forked():
            raise CollectiveError("this process was forked from one that uses collectives; it cannot take part in them")

    def short_call(self) -> Any:
        """The call of the short way that is under way."""
        raise NotImplementedError

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others, first of all those waited for, do: for a message.

        ``again``: the others may be about to wait, too.
        """
        mine = Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))
        ranks = [*behind, *(rank for rank in self.others() if rank not in behind)]
        if len(ranks) >= TOLD_OF:
            ranks.sort(key=lambda rank: not self.has_gone(rank))
        ranks = ranks[: TOLD_OF - 1]
        with Inquiry(self, _asked(run)) as asking:
            return [mine, *asking.settle(ranks, again)]

    def note(self, run: Any, error: BaseException) -> None:
        """A run ended early: what it left under way stays in memory, and no more is begun on this communicator.

        Its buffers, and those of all that is under way, are the program's again. Whatever ended the run, this rank and
        the others would no longer agree on the next one.
        """
        lifetime.keep(run)
        if self.broken is not None:
            self.give_up(run)
        else:
            if self.log is not None:
                from . import trace  # which needs MPI

                trace.failed(self, run, error)
            kind, first = type(error).__name__, str(error).partition("\n")[0]
            origin = getattr(error, "origin", None) or first
            place = position(threading.get_ident())
            gave_up = self.first_under_way(run)
            self.failed = Answer(self.rank, run.call(), self.begun, place, (kind, origin), gave_up=gave_up)
            self.broken = f"{kind}: {first}"
            if self.node is not None:
                self.node.open({})
            self.give_up(run)
            inquiry.spread(self, self.failed)
            _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")

    def fail(self, run: Any, error: BaseException) -> NoReturn:
        """:meth:`note` it, and raise the error, as a CollectiveError where MPI or the other ranks are to blame."""
        if isinstance(error, _core.GivenUpError):
            error = self.given_up(run)
        try:
            kind, why = self._blame(error)
            if kind is None:
                self.note(run, error)
                raise error
            first = f"{self.place_of(run)}: {why}"
            self.note(run, kind(first))
            told = ""
            if kind is not CollectiveError:
                parties = self.parties(run, [], again=True)
                told = lines(parties)
                mine = run.call()
                if kind is CollectiveMismatch and not any(p.call and differ(mine, p.call) for p in parties):
                    first += "; here, or in an earlier call that one of them ended without the others"
            raise kind(first + told) from (None if kind is CollectiveMismatch else error)
        finally:  # until then it may still hang in MPI
            self.waits[:] = [wait for wait in self.waits if wait.run is not run]

    def hears_of_deaths(self) -> bool:
        """Whether anybody would tell of a death: the system, of those on this machine."""
        return bool(self.neighbours)

    def dead(self, until: float) -> list[int]:
        """Ranks whose processes have ended, or do so until a moment; none where all ranks' are known to live."""
        while True:
            dead = [rank for rank in self.others() if self.has_ended(rank)]
            if dead or not self.hears_of_deaths() or time.monotonic() > until:
                return dead
            time.sleep(0.01)

    def _blame(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """What an error means to all ranks, and why; None where it is to be raised as it is."""
        if isinstance(error, _core.MismatchError):
            return CollectiveMismatch, str(error)
        if not isinstance(error, RuntimeError) or isinstance(error, CollectiveError):
            return None, ""
        dead = self.dead(time.monotonic() + (0 if isinstance(error, _core.OpError) else NOTICE))
        if dead:
            return PeerFailure, f"rank {', '.join(map(str, dead))} died"
        return self.blame_transport(error)

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """What an error means where all ranks are known to live."""
        return CollectiveError, str(error)
