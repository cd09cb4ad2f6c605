"""How a communicator waits for its calls, and how calls fail that do not end.

A call that has not ended after a slice of 20 ms is watched: the wait checks whether the processes that the call waits
for still run and, from the first second on, asks their ranks what they are doing. A ``run`` is one call that is
executed: an object with ``plan``, ``call()`` and ``wait()``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from ..arguments.signature import differ
from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import Answer, lines, position, verdict
from ..diagnostics.exit_notes import Reader
from ..diagnostics.peer_queries import PeerQuery
from ..errors import CollectiveError, CollectiveMismatch, PeerFailure
from . import ending, turns, watching
from .giving_up import GivingUp
from .watching import LATELY, Wait, Watch, asked_about

__all__ = ["TOLD_OF", "Waiting"]

_News = TypeVar("_News")
TOLD_OF = 64  # most ranks, this one included, whose state an error message is made from
LATE = 1_000_000  # ns of progress after a timeout
TESTED = 16  # most calls of one communicator that are watched because the program tests them
NOTICE = 1.0  # seconds from an error of MPI's until /proc shows a death: a process closes its sockets before it is gone


class Waiting(GivingUp):
    """The waiting of :class:`collectives.runtime.context.Context`, which derives from this class."""

    identity: str
    neighbours: dict[int, peer_queries.Address]
    mpi_queries: Any  # questions to ranks on other machines; None if there are no such ranks
    waits: list[Wait]  # waits of all threads; one may begin within another, in a signal handler
    abandoned = False  # by revoke or shrink: MPI does not wait for the calls under way
    tested: dict[Any, Watch]  # calls that the program tests repeatedly, and that have not ended
    left: dict[int, Answer]  # ranks of other machines that have sent word that their programs have ended
    stall: float | None = None  # seconds after which a wait without a timeout is reported
    gone: Answer | None = None  # this rank's state once its program has ended

    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def behind(self, run: Any) -> list[int]:
        """Ranks that ``run`` waits for, itself or through queued operations; empty if that is not known."""
        if run.plan is None:
            return []
        return sorted(run.plan.waiting() or {rank for o in _core.queued(self) for rank in o.plan.waiting()})

    def distance(self, rank: int) -> int:
        """Distance of ``rank`` from this rank on a ring of all ranks."""
        return min((rank - self.rank) % self.size, (self.rank - rank) % self.size)

    def has_ended(self, rank: int) -> bool:
        """Whether this machine's system shows that the process of ``rank`` has ended; False for ranks elsewhere."""
        peer = self.neighbours.get(rank)
        return peer is not None and not peer_queries.alive(peer)

    def has_gone(self, rank: int) -> bool:
        """Whether the process of ``rank`` has ended (:meth:`has_ended`), or it has told that its program is over."""
        return self.has_ended(rank) or rank in self.left or peer_queries.left(self, rank) is not None

    def seems_ended(self, rank: int) -> bool:
        """Whether the machine of ``rank`` has refused a connection to the port that the rank's process had opened."""
        return self.mpi_queries is not None and self.mpi_queries.refused(rank)

    def end_of(self, rank: int) -> str:
        """Text for an error message: how it is known that the process of ``rank`` has ended."""
        peer = self.neighbours.get(rank)
        return "MPI says that its process has ended" if peer is None else f"its process {peer.pid} has ended"

    def misses_some(self) -> bool:
        """Whether some ranks are known not to reach MPI_Finalize."""
        return bool(self.dead(0.0)) or self.mpi_queries is not None and self.mpi_queries.any_died()

    def meanwhile(self) -> None:
        """What else this rank does in each 20 ms of a long wait, for who replaces it; what it raises ends the call."""

    def lateness(self, timeout: float) -> str:
        """Text for an error message: a call is not complete after ``timeout`` seconds."""
        return f"not complete after {timeout:g} s"

    def place_of(self, run: Any) -> str:
        """Text for an error message: ``run``, this rank and the number of ranks."""
        return f"{run} on rank {self.rank} of {self.size}"

    def wait(self, run: Any, timeout: float | None = None, progressing: Any = None) -> None:
        """Progress ``run`` until it ends; raises the errors of :meth:`Watch.look`, and CollectiveTimeout.

        ``timeout`` is in seconds, by default the communicator's. ``progressing`` is the object whose ``wait`` makes the
        progress, by default the run itself.
        """
        progressing = progressing or run
        timeout = self.timeout if timeout is None else timeout
        limit = watching.SLICE if timeout is None else min(watching.SLICE, int(timeout * 1e9))
        wait = Wait(run, timeout, self.waits)
        self.waits.append(wait)
        if not progressing.wait(self.yield_at_once, limit):
            self._go_on(wait, progressing, timeout, limit)
        if self.some_gave_up and not _by_engine(run):
            self.look_for_quitters(run)
        self.waits.remove(wait)
        if self.tested:
            self.end_glances(progressing)

    def judged(self, run: Any, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
        """The :func:`~collectives.diagnostics.diagnosis.verdict` on ``run`` by another rank's ``answer``, or None."""
        return verdict(run.call(), answer)

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
            if not progressing.wait(self.yield_at_once, LATE):  # a late rank may have come while it was asked
                raise error
        finally:
            watch.close()

    def complete(self, operation: _core.Operation, timeout: float | None = None) -> None:
        """Wait until a queued operation ends; raise the error that ended it early, CollectiveTimeout included."""
        ending.refuse_if_forked()
        try:
            if operation.check is not None:
                operation.check.ended(wait=True)
            if operation.failure is None and (not operation.done or operation.error() is not None):
                self.check()
            self.wait(operation, timeout)
        except BaseException as e:
            self.fail(operation, e)

    def test(self, operation: _core.Operation) -> bool:
        """Progress a queued operation and return whether it has ended; raise the error that ended it early."""
        ending.refuse_if_forked()
        try:
            checked = operation.check is None or operation.check.ended(wait=False)
            ended = checked and operation.wait(self.yield_at_once, 0)
            if not ended:
                operation.tested = True
                self.glance(operation, operation)
            if not ended or not _by_engine(operation):
                self.look_for_quitters(operation)
        except BaseException as e:
            self.fail(operation, e)
        return ended

    def ended_early(self, operation: _core.Operation, error: BaseException) -> None:
        """Record, by :meth:`note`, that a queued operation has ended with ``error``; its ``Wait`` raises it, too."""
        if isinstance(error, _core.GivenUpError):
            operation.failure = self.given_up(operation)
        else:
            operation.failure = self._translated(operation, error) or error
        self.note(operation, operation.failure)

    def listed(self) -> list[Wait]:
        """The waits of all threads."""
        return list(self.waits)

    def oldest_first(self) -> list[Wait]:
        """The waits of all threads in the order of their calls' numbers, in which the calls end."""
        return sorted(self.waits, key=lambda wait: wait.run.call().number or sys.maxsize)

    def take_turn(self) -> None:
        """Take the communicator's turn for a call, ended by ``turn.give``; CollectiveError if a call is under way."""
        while not self.turn.take():
            turns.refuse(self)

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Hold the communicator's turn within this context; see :meth:`take_turn`."""
        self.take_turn()
        try:
            yield
        finally:
            self.turn.give()

    def check_turn(self) -> None:
        """Raise CollectiveError if a blocking call is under way in this process, so that no other may begin."""
        self.take_turn()
        self.turn.give()

    def glance(self, run: Any, progressing: Any) -> None:
        """Check, at most once every 20 ms, that a call which the program tests repeatedly can still end.

        Of many such calls only the first ones are watched. Another one takes the place of one that has ended, or that
        the program has not tested for a second.
        """
        watch, now = self.tested.get(progressing), time.monotonic_ns()
        if watch is None:
            if len(self.tested) >= TESTED and not self._forget_one(now):
                return
            watch = Watch(self, run, float("inf"))
            watch.next_look = now
            self.tested[progressing] = watch
        if now >= watch.next_look:
            watch.next_look = now + watching.SLICE
            watch.look(progressing)

    def _forget_one(self, now: int) -> bool:
        """Stop watching one call that the program no longer tests, if there is one; ``now`` is the time in ns."""
        idle = (tested for tested, watch in list(self.tested.items()) if now - watch.next_look > LATELY)
        found = next(idle, None)
        if found is not None:
            self.end_glances(found)
        return found is not None

    def end_glances(self, progressing: Any) -> None:
        """Stop watching a tested call, because it has ended or too many calls are watched."""
        watch = self.tested.pop(progressing, None)
        if watch is not None:
            watch.close()

    # Failures

    def error_of(
        self, run: Any, kind: type[CollectiveError], why: str, origin: str | None, behind: list[int]
    ) -> CollectiveError:  # fmt: skip
        """The error of ``run``, of class ``kind``; its message has ``why`` and what the ranks are doing.

        ``behind`` are the ranks that the run waits for; they come first in the message. If calls differ, all of
        them are to be told: a rank that is in no call may be about to raise, too.
        """
        parties = self.parties(run, behind, again=kind is CollectiveMismatch)
        error = kind(f"{self.place_of(run)}: {why}{lines(parties)}")
        error.origin = origin
        return error

    def describe(self, thread: int | None = None, number: int | None = None) -> Answer:
        """What this rank does on this communicator: its answer to ranks that ask.

        ``thread`` is the thread whose place in the program is told, by default the waiting one, else the main one. The
        answer also describes this rank's call with ``number``, if it has begun it.
        """
        then = None if number is None or number > self.begun else self.call_of(number)
        waits, call = self.oldest_first(), None
        known = self.failed or (None if waits else self.gone)  # a handler of the program's end may make calls
        if known is not None:
            return known._replace(then=then)
        if waits:
            call, thread = waits[0].run.call(), waits[0].thread
        elif run := next((wait.run for wait in self.listed()), None) or self.oldest_pending():
            call = run.call()  # on the fast path, for less than a slice; or a call that only MPI waits for, if at all
        return Answer(self.rank, call, self.begun, position(thread), then=then)

    def check(self) -> None:
        """Raise CollectiveError if the communicator is broken or this process is a forked child."""
        if self.broken is not None:
            raise self.refusal()
        ending.refuse_if_forked()

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others are doing, for an error message: this rank first, then those in ``behind``.

        ``again``: ask ranks that are in no call more than once, since they may be about to wait, too.
        """
        mine = Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))
        ranks = [*behind, *(rank for rank in self.others() if rank not in behind)]
        if len(ranks) >= TOLD_OF:
            ranks.sort(key=lambda rank: not self.has_gone(rank))
        ranks = ranks[: TOLD_OF - 1]
        with PeerQuery(self, asked_about(run)) as asking:
            return [mine, *asking.settle(ranks, again)]

    def fail(self, run: Any, error: BaseException) -> NoReturn:
        """Record by :meth:`note` that ``run`` has ended early, and raise the error.

        An error that comes from MPI or from other ranks is raised as a CollectiveError, which says what the ranks do.
        If the function called at the end of a call fails, only this rank raises; the communicator is not broken.
        """
        if isinstance(run, _core.Operation) and run.delivered and error is run.error():
            self.leave(run)
            _core.sweep()
            raise error
        begun = False  # the giving up
        try:
            if isinstance(error, _core.GivenUpError):
                error = self.given_up(run)
            noted = self._translated(run, error)
            begun = True
            self.note(run, noted or error)
            if noted is None:
                raise error
            kind, first = type(noted), str(noted)
            told = ""
            if kind is not CollectiveError:
                parties = self.parties(run, [], again=True)
                told = lines(parties)
                mine = run.call()
                if kind is CollectiveMismatch and not any(p.call and differ(mine, p.call) for p in parties):
                    first += "; here, or in an earlier call that one of them ended without the others"
            raised = kind(first + told)
            raised.origin = noted.origin
            raise raised from (None if kind is CollectiveMismatch else error)
        except BaseException as e:
            if not begun:  # a signal handler's exception, while it was found out why the run has ended
                self.note(run, e)
            raise
        finally:  # not earlier: the watchdog needs the wait as long as this thread may hang in MPI
            self.leave(run)

    def _translated(self, run: Any, error: BaseException) -> CollectiveError | None:
        """The CollectiveError for an ``error`` of MPI or the core that has ended ``run``; None: it is to be raised."""
        kind, why, origin = self._blame(run, error)
        if kind is None:
            return None
        found = kind(f"{self.place_of(run)}: {why}")
        found.origin = origin
        return found

    def leave(self, run: Any) -> None:
        """Take the waits for ``run`` off the list."""
        for wait in [wait for wait in self.waits if wait.run is run]:
            with contextlib.suppress(ValueError):
                self.waits.remove(wait)

    def hears_of_deaths(self) -> bool:
        """Whether the death of some other rank's process would be reported: the system knows those of its machine."""
        return bool(self.neighbours)

    def dead(self, until: float) -> list[int]:
        """Other ranks whose processes have ended, or end before the monotonic time ``until``; else an empty list."""
        return self._await_news(until, lambda: [rank for rank in self.others() if self.has_ended(rank)]) or []

    def _await_news(self, until: float, look: Callable[[], _News | None]) -> _News | None:
        """What ``look()`` returns, once that is true, ``until`` is past, or nothing is heard of deaths."""
        while True:
            news = look()
            if news or not self.hears_of_deaths() or time.monotonic() > until:
                return news
            time.sleep(0.01)

    def _ended(self, run: Any, until: float) -> str | None:
        """Which ranks have ended, or end before the monotonic time ``until``, as text; None if that is not known.

        A process closes its connections before it ends, which may take long if its memory is large or cores are busy.
        So the program of a rank that ``run`` may wait for may be known to have ended while its process still runs.
        """

        def look() -> str | None:
            if dead := self.dead(0.0):
                return f"rank {', '.join(map(str, dead))} died"
            return self._leaving(run)

        return self._await_news(until, look)

    def _leaving(self, run: Any) -> str | None:
        """How the program of a rank that ``run`` may wait for has ended, as text, though its process runs; or None."""
        for rank in getattr(run, "ranks", None) or self.behind(run) or self.others():
            if rank in self.neighbours:
                with contextlib.closing(Reader(self.neighbours[rank].pid, self.neighbours[rank].note)) as reader:
                    note = reader.read()
                if note is not None:
                    return f"rank {rank} {note.how}"
        return None

    def _blame(self, run: Any, error: BaseException) -> tuple[type[CollectiveError] | None, str, str | None]:
        """Class (None: raise ``error`` unchanged), text and origin (another rank's error, or None) of what to raise."""
        if isinstance(error, _core.MismatchError):
            return CollectiveMismatch, str(error) + self.unequal_message(), None
        if not isinstance(error, RuntimeError) or isinstance(error, CollectiveError):
            return None, "", None
        ended = None if isinstance(error, _core.OpError) else self._ended(run, time.monotonic() + NOTICE)
        if ended is not None:
            return PeerFailure, ended, None
        for answer in list(self.heard.values()):
            found = self.judged(run, answer)
            if found is not None:
                return found
        return *self.blame_transport(error), None

    def unequal_message(self) -> str:
        """Text for an error message: whose message was not as long as expected, if that is known."""
        return ""

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """The exception class and text for ``error`` if no rank is known to have died."""
        return CollectiveError, str(error)


def _by_engine(run: Any) -> bool:
    """Whether the node-local engine executes ``run``; the engine itself notices ranks that give up."""
    return isinstance(run.plan, _core.NodePlan)
