"""How a communicator waits for its calls, and what becomes of those that do not end.

A call that has been waited for in vain for a slice of time is watched: whether the processes that it waits for still
run, and, from the first second on, what their ranks say they are doing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from ..arguments.signature import differ
from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import Answer, lines, position, verdict
from ..diagnostics.peer_queries import PeerQuery
from ..errors import CollectiveError, CollectiveMismatch, PeerFailure
from ..system import lifetime
from . import ending, turns, watching
from .giving_up import GivingUp
from .watching import Wait, Watch, asked_about

__all__ = ["TOLD_OF", "Waiting"]

TOLD_OF = 64  # ranks that are asked for a message, this one among them
TESTED = 16  # requests tested in turn that are looked at
NOTICE = 1.0  # seconds by which MPI may know of a death before the system does: files are closed first


class Waiting(GivingUp):
    """What :class:`collectives.runtime.context.Context` does while it waits; mixed into it."""

    identity: str
    neighbours: dict[int, peer_queries.Address]
    mpi_queries: Any  # where some ranks are on other machines
    waits: list[Wait]  # under way, of all threads; one may begin within another, in a handler of a signal
    failed: Answer | None = None
    abandoned = False  # by revoke or shrink: MPI does not wait for what is under way
    tested: dict[Any, Watch]  # calls that are tested again and again, and have not ended
    left: dict[int, Answer]  # those elsewhere whose programs have ended, as they told
    stall: float | None = None  # seconds after which a wait without a timeout is reported
    timeline: Any = None  # what records it, a :class:`collectives.trace.recording.Trace`
    gone: Answer | None = None  # this rank, when its program has ended

    def others(self) -> list[int]:
        """All ranks but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def behind(self, run: Any) -> list[int]:
        """Ranks that a run waits for, itself or behind others; empty where nobody knows."""
        if run.plan is None:
            return []
        return sorted(run.plan.waiting() or {rank for o in _core.queued(self) for rank in o.plan.waiting()})

    def distance(self, rank: int) -> int:
        """How far a rank is from this one, counted round."""
        return min((rank - self.rank) % self.size, (self.rank - rank) % self.size)

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended."""
        peer = self.neighbours.get(rank)
        return peer is not None and not peer_queries.alive(peer)

    def has_gone(self, rank: int) -> bool:
        """Whether the process or the program of a rank is known to have ended."""
        return self.has_ended(rank) or rank in self.left or peer_queries.left(self, rank) is not None

    def seems_ended(self, rank: int) -> bool:
        """Whether the machine of a rank that was asked in vain says that its process has ended."""
        return self.mpi_queries is not None and self.mpi_queries.refused(rank)

    def end_of(self, rank: int) -> str:
        """Words for a rank whose process is known to have ended."""
        peer = self.neighbours.get(rank)
        return "MPI says that its process has ended" if peer is None else f"its process {peer.pid} has ended"

    def misses_some(self) -> bool:
        """Whether some ranks will not come to MPI_Finalize, as far as is known."""
        return bool(self.dead(0.0)) or self.mpi_queries is not None and self.mpi_queries.any_refused()

    def lateness(self, timeout: float) -> str:
        """Words for a call that has taken too many seconds."""
        return f"not complete after {timeout:g} s"

    def place_of(self, run: Any) -> str:
        """Words for a run of this rank."""
        return f"{run} on rank {self.rank} of {self.size}"

    def wait(self, run: Any, timeout: float | None = None, progressing: Any = None) -> None:
        """Progress a run to its end, or to the timeout (default: the communicator's).

        ``progressing`` is what does so, where it is not the run itself.
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
        """:func:`collectives.diagnostics.diagnosis.verdict` on a run."""
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
            if not progressing.wait(self.yield_at_once, 0):  # who was late may have come while it was asked
                raise error
        finally:
            watch.close()

    def complete(self, operation: _core.Operation, timeout: float | None = None) -> None:
        """Wait for a queued operation to its end, or to a timeout; raises what ended it early."""
        ending.refuse_if_forked()
        try:
            if not operation.done or operation.error() is not None:
                self.check()
            if operation.check is not None:
                operation.check.ended(wait=True)
            self.wait(operation, timeout)
        except BaseException as e:
            self.fail(operation, e)

    def test(self, operation: _core.Operation) -> bool:
        """Move a queued operation on; whether it has ended. Raises what ended it early."""
        ending.refuse_if_forked()
        try:
            ended = (operation.check is None or operation.check.ended(wait=False)) and operation.wait(False, 0)
            if not ended:
                operation.tested = True
                self.glance(operation, operation)
            elif self.tested:
                self.end_glances(operation)
            if not ended or not _by_engine(operation):
                self.look_for_quitters(operation)
        except BaseException as e:
            self.fail(operation, e)
        return ended

    def ended_early(self, operation: _core.Operation, error: BaseException) -> None:
        """:meth:`note` that a queued operation has ended with an error."""
        self.note(operation, self.given_up(operation) if isinstance(error, _core.GivenUpError) else error)

    def listed(self) -> list[Wait]:
        """What threads wait for."""
        return list(self.waits)

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
        watch = self.tested.get(progressing)
        if watch is None:
            for oldest in list(self.tested)[: 1 - TESTED]:
                self.end_glances(oldest)
            watch = self.tested[progressing] = Watch(self, run, float("inf"))
        now = time.monotonic_ns()
        if now >= watch.next_look:
            watch.next_look = now + watching.SLICE
            watch.look(progressing)

    def end_glances(self, progressing: Any) -> None:
        """A call that was tested has ended, or too many others are tested."""
        watch = self.tested.pop(progressing, None)
        if watch is not None:
            watch.close()

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
        then = None if number is None or number > self.begun else self.call_of(number)
        known = self.failed or self.gone
        if known is not None:
            return known._replace(then=then)
        waits, call = self.oldest_first(), None
        if waits:
            call, thread = waits[0].run.call(), waits[0].thread
        elif running := self.listed():  # on the fast path, for less than a slice
            call = running[0].run.call()
        return Answer(self.rank, call, self.begun, position(thread), then=then)

    def check(self) -> None:
        """Refuse work where it cannot be done any more; CollectiveError says why."""
        if self.broken is not None:
            raise CollectiveError(f"this communicator is broken since an earlier call failed ({self.broken})")
        ending.refuse_if_forked()

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others, first of all those waited for, do: for a message.

        ``again``: the others may be about to wait, too.
        """
        mine = Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))
        ranks = [*behind, *(rank for rank in self.others() if rank not in behind)]
        if len(ranks) >= TOLD_OF:
            ranks.sort(key=lambda rank: not self.has_gone(rank))
        ranks = ranks[: TOLD_OF - 1]
        with PeerQuery(self, asked_about(run)) as asking:
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
                self.timeline.failed(self, run, error)
            kind, first = type(error).__name__, str(error).partition("\n")[0]
            origin = getattr(error, "origin", None) or first
            place = position(threading.get_ident())
            gave_up = self.first_under_way(run)
            self.failed = Answer(self.rank, run.call(), self.begun, place, (kind, origin), gave_up=gave_up)
            self.broken = f"{kind}: {first}"
            _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")
            self.close()
            try:
                self.give_up(run)
            finally:  # another interruption may end what it waits for
                peer_queries.spread(self, self.failed)

    def fail(self, run: Any, error: BaseException) -> NoReturn:
        """:meth:`note` it, and raise the error, as a CollectiveError where MPI or the other ranks are to blame."""
        if isinstance(error, _core.GivenUpError):
            error = self.given_up(run)
        try:
            kind, why, origin = self._blame(run, error)
            if kind is None:
                self.note(run, error)
                raise error
            first = f"{self.place_of(run)}: {why}"
            noted = kind(first)
            noted.origin = origin
            self.note(run, noted)
            told = ""
            if kind is not CollectiveError:
                parties = self.parties(run, [], again=True)
                told = lines(parties)
                mine = run.call()
                if kind is CollectiveMismatch and not any(p.call and differ(mine, p.call) for p in parties):
                    first += "; here, or in an earlier call that one of them ended without the others"
            raised = kind(first + told)
            raised.origin = origin
            raise raised from (None if kind is CollectiveMismatch else error)
        finally:  # until then it may still hang in MPI
            for wait in [wait for wait in self.waits if wait.run is run]:
                with contextlib.suppress(ValueError):
                    self.waits.remove(wait)

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

    def _blame(self, run: Any, error: BaseException) -> tuple[type[CollectiveError] | None, str, str | None]:
        """What an error means to all ranks, why, and whose error it comes from; None: it is to be raised as it is."""
        if isinstance(error, _core.MismatchError):
            return CollectiveMismatch, str(error), None
        if not isinstance(error, RuntimeError) or isinstance(error, CollectiveError):
            return None, "", None
        dead = self.dead(time.monotonic() + (0 if isinstance(error, _core.OpError) else NOTICE))
        if dead:
            return PeerFailure, f"rank {', '.join(map(str, dead))} died", None
        for answer in list(self.heard.values()):
            found = self.judged(run, answer)
            if found is not None:
                return found
        return *self.blame_transport(error), None

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """What an error means where all ranks are known to live."""
        return CollectiveError, str(error)


def _by_engine(run: Any) -> bool:
    """Whether a run is the node-local engine's, which sees for itself that a rank gave up."""
    return isinstance(run.plan, _core.NodePlan)
