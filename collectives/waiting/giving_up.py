"""How a communicator gives up calls that fail, and notices that other ranks have given up theirs.

A rank whose call fails withdraws from all calls under way, since their buffers belong to the program again. Other
ranks see that in the node-local engine's flags, or are told by a message, and raise the same kind of error.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..arguments.signature import Call
from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import Answer, position, verdict
from ..diagnostics.peer_queries import PeerQuery
from ..errors import CollectiveError, PeerFailure, brief
from ..system import lifetime

__all__ = ["GivingUp"]

LAST_WORDS = 0.3  # seconds that a message which has arrived may wait for the thread that reads it
LEAVING = 2.0  # seconds that a failed call waits for ranks that are just using its buffers
_NOTING = threading.RLock()  # a signal handler may note a failure within another one


class GivingUp(_core.Calls):
    """The giving up of calls of :class:`collectives.waiting.waiting.Waiting`, which derives from this class."""

    group: list[int]  # ranks of this node
    failed: Answer | None = None  # this rank's state when the communicator failed
    timeline: Any = None  # the recorder of a timeline, a :class:`collectives.trace.recording.Trace`

    # Defined by the class that this is mixed into.
    has_ended: Callable[[int], bool]
    has_gone: Callable[[int], bool]
    error_of: Callable[..., CollectiveError]

    def call_of(self, number: int) -> Call | None:
        """The call with this number; None if it is too old to be known.

        Calls of the node-local engine are not recorded: of these the result has only the number and ``"shm"``.
        """
        recent, more = self.recent
        for known, describe in reversed(recent):
            if known == number:
                return describe()._replace(number=number)
        covered = not more or recent[0][0] < number
        return Call(number, "", "shm", 0, "", "", None) if covered else None

    def hear(self, answer: Answer) -> None:
        """Record that the rank of ``answer`` has failed and has given up its calls. Any thread may call this."""
        self.heard[answer.rank] = answer
        self.close()  # the fast path does not look at ``heard``

    def quitters(self) -> list[int]:
        """Other ranks of this node that have given up a call, by the engine's flags; sends no message."""
        if self.node is None:
            return []
        return [self.group[i] for i in self.node.quitters if self.group[i] != self.rank]

    def look_for_quitters(self, run: Any) -> None:
        """Raise the error of ``run`` if it needs a rank that has given up; return otherwise.

        This is called after a run has ended as well: data that it took from such a rank may have changed before.
        """
        if not self.some_gave_up:
            return
        quitters = self.quitters()
        if silent := [rank for rank in quitters if rank not in self.heard]:
            with PeerQuery(self) as asking:
                for answer in asking.settle(silent, False):
                    if answer.failure is not None:
                        self.hear(answer)
            self._await_last_words([rank for rank in silent if self.has_gone(rank)])
        for answer in list(self.heard.values()):
            found = verdict(run.call(), answer)
            if found is not None:
                raise self.error_of(run, *found, [answer.rank])

    def _await_last_words(self, ranks: list[int]) -> None:
        """Wait up to 0.3 s for the failures that ``ranks`` told before they ended; another thread receives them."""
        end = time.monotonic() + LAST_WORDS
        while not self.heard.keys() >= set(ranks) and time.monotonic() < end:
            time.sleep(0.001)

    def first_under_way(self, run: Any) -> int:
        """Number of the first call, ``run`` included, that is not complete; of the next call if all are."""
        numbers = [run.call().number for run in (run, *self.pending())]
        return min([number for number in numbers if number is not None], default=self.begun + 1)

    def pending(self) -> list[_core.Operation]:
        """The queued operations that are not complete."""
        return [operation for operation in _core.queued(self) if not operation.done]

    def oldest_pending(self) -> _core.Operation | None:
        """The earliest queued operation that is not complete, or None."""
        return min(self.pending(), key=lambda operation: operation.number or sys.maxsize, default=None)

    def groups(self) -> list[_core.Node]:
        """The communicator's groups of the node-local engine."""
        return [] if self.node is None else [self.node]

    def give_up_messages(self, receives_only: bool = False) -> None:
        """Give up the messages that the library moves by itself. ``receives_only``: receives that none has reached."""

    def is_busy(self) -> bool:
        """Whether this rank may still use memory of other ranks, though the program has no handle to the group."""
        return False

    def give_up(self, run: Any) -> None:
        """Withdraw this rank from all calls under way; wait up to 2 s for ranks that are just using its buffers."""
        tasks: list[Any] = _core.queued(self)
        if run.plan is not None and run not in tasks:
            tasks.append(run)
        for task in tasks:
            task.withdraw()
        for group in self.groups():
            group.give_up()
        self.give_up_messages()
        end = time.monotonic() + LEAVING
        while self._in_use(tasks) and time.monotonic() < end:
            time.sleep(0.0005)

    def _in_use(self, tasks: list[Any]) -> bool:
        """Whether other ranks, or MPI, may still write to buffers of ``tasks``, which are given up."""
        coming = [task for task in tasks if task.withdraw()]
        writing = {group_rank for group in self.groups() for group_rank in group.writers}
        return bool(coming) or not all(self.has_ended(self.group[i]) for i in writing)

    def note(self, run: Any, error: BaseException) -> None:
        """Record that ``run`` has ended early by ``error``: the communicator is broken, and no more calls begin on it.

        This rank withdraws from all calls under way, since their buffers belong to the program again. The run itself
        is kept in memory. The cause does not matter: the ranks would no longer agree on which call is the next. Only
        the first error is told to other ranks; any thread may find it.
        """
        lifetime.keep(run)
        with _NOTING:
            news = self._record(run, error) if self.broken is None else None
        try:
            if news is not None and self.log is not None:
                self.timeline.failed(self, run, error)
            self.give_up(run)
        finally:  # a second KeyboardInterrupt, for example, may end give_up
            if news is not None:
                peer_queries.spread(self, news)

    def _record(self, run: Any, error: BaseException) -> Answer:
        kind, _, first = brief(error).partition(": ")
        origin = getattr(error, "origin", None) or first
        gave_up, place = self.first_under_way(run), position(threading.get_ident())
        self.failed = news = Answer(self.rank, run.call(), self.begun, place, (kind, origin), gave_up=gave_up)
        self.break_by(error)
        self.close()
        return news

    def break_by(self, error: BaseException) -> None:
        """Let no more calls begin on the communicator, since ``error`` has ended one; MPI_Finalize might hang now."""
        self.broken = brief(error)
        _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")

    def refusal(self) -> CollectiveError:
        """The error for a further call on a communicator that is broken."""
        return CollectiveError(f"this communicator is broken since an earlier call failed ({self.broken})")

    def given_up(self, run: Any) -> CollectiveError:
        """The error to raise for ``run``, which this rank or another one has given up."""
        if self.broken is not None:
            return self.refusal()
        try:
            self.look_for_quitters(run)
        except CollectiveError as e:
            return e
        quitters = self.quitters()
        for answer in [self.heard[rank] for rank in quitters if rank in self.heard]:
            found = verdict(run.call()._replace(number=None), answer)  # the engine numbers its calls separately
            if found is not None:
                return self.error_of(run, *found, quitters)
        names = f"rank {', '.join(map(str, quitters))}" if quitters else "another rank"
        return self.error_of(run, PeerFailure, f"{names} gave up this call", None, quitters)
