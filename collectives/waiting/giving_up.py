"""Calls that are given up, and what ranks remember of their calls: a communicator's part in both.

A rank that fails takes its part back in all that is under way, for its buffers are the program's again. The others see
it in the node-local engine's flags, or hear of it, and raise what it raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..arguments.signature import Call
from ..core import _core
from ..diagnostics.diagnosis import Answer, verdict
from ..diagnostics.peer_queries import PeerQuery
from ..errors import CollectiveError, PeerFailure

__all__ = ["GivingUp"]

LEAVING = 2.0  # seconds that a failed call waits for ranks which use its buffers just then


class GivingUp(_core.Calls):
    """Mixed into :class:`collectives.waiting.waiting.Waiting`."""

    group: list[int]  # ranks of this node

    # Of the class that this is mixed into.
    has_ended: Callable[[int], bool]
    error_of: Callable[..., CollectiveError]

    def call_of(self, number: int) -> Call | None:
        """The call of a number, of which little is known if it was the engine's; None where it is forgotten."""
        recent: list[tuple[int, Callable[[], Call]]] = list(self.recent)
        for known, describe in reversed(recent):
            if known == number:
                return describe()._replace(number=number)
        covered = len(recent) < (self.recent.maxlen or 0) or recent[0][0] < number
        return Call(number, "", "shm", 0, "", "", None) if covered else None

    def hear(self, answer: Answer) -> None:
        """Learn that a rank has failed: it gave up its part in what is under way. In any thread."""
        self.heard[answer.rank] = answer
        self.close()  # the fast path to the engine looks at nothing of this

    def quitters(self) -> list[int]:
        """Ranks of this node, but this one, that have given up a call; without asking anybody."""
        if self.node is None:
            return []
        return [self.group[i] for i in self.node.quitters if self.group[i] != self.rank]

    def look_for_quitters(self, run: Any) -> None:
        """Raise what has become of a run for which a rank that gave up is needed.

        While a run is waited for, and after it: what it took of such a rank may be of a later time.
        """
        if not self.some_gave_up:
            return
        quitters = self.quitters()
        if silent := [rank for rank in quitters if rank not in self.heard]:
            with PeerQuery(self) as asking:
                for answer in asking.settle(silent, False):
                    if answer.failure is not None:
                        self.hear(answer)
        for answer in list(self.heard.values()):
            found = verdict(run.call(), answer)
            if found is not None:
                raise self.error_of(run, *found, [answer.rank])

    def first_under_way(self, run: Any) -> int:
        """Number of the first call that is not complete; that of the next one where all are."""
        runs = [run, *(operation for operation in _core.queued(self) if not operation.done)]
        numbers = [run.call().number for run in runs]
        return min([number for number in numbers if number is not None], default=self.begun + 1)

    def groups(self) -> list[_core.Node]:
        """The communicator's groups of the node-local engine."""
        return [] if self.node is None else [self.node]

    def give_up(self, run: Any) -> None:
        """Take back this rank's part in what is under way, and wait for those who use its buffers just then."""
        tasks: list[Any] = _core.queued(self)
        if run.plan is not None:
            tasks.append(run.plan)
        for task in tasks:
            task.withdraw()
        for group in self.groups():
            group.give_up()
        end = time.monotonic() + LEAVING
        while self._in_use(tasks) and time.monotonic() < end:
            time.sleep(0.0005)

    def _in_use(self, tasks: list[Any]) -> bool:
        """Whether other ranks, or MPI, write to buffers of tasks that are given up."""
        coming = [task for task in tasks if task.withdraw()]
        writing = {group_rank for group in self.groups() for group_rank in group.writers}
        return bool(coming) or not all(self.has_ended(self.group[i]) for i in writing)

    def given_up(self, run: Any) -> CollectiveError:
        """The error of a run that this rank or another one has given up."""
        if self.broken is not None:
            return CollectiveError(f"this communicator is broken since an earlier call failed ({self.broken})")
        try:
            self.look_for_quitters(run)
        except CollectiveError as e:
            return e
        quitters = self.quitters()
        for answer in [self.heard[rank] for rank in quitters if rank in self.heard]:
            found = verdict(run.call()._replace(number=None), answer)  # the engine has numbers of its own
            if found is not None:
                return self.error_of(run, *found, quitters)
        names = f"rank {', '.join(map(str, quitters))}" if quitters else "another rank"
        return self.error_of(run, PeerFailure, f"{names} gave up this call", None, quitters)
