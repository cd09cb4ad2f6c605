"""What the ranks of one process share: the calls under way, the messages, and the failure of a rank."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from collectives import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure

_here = threading.local()


def current() -> Any:
    """The communicator of the rank that this thread is, a `ThreadComm`; None in a thread that is no rank."""
    return getattr(_here, "comm", None)


def set_current(comm: Any) -> None:
    """Make this thread the rank of `comm`, or no rank if it is None."""
    _here.comm = comm


def _named(ranks: Iterable[int]) -> str:
    listed = [str(rank) for rank in ranks]
    if not listed:
        return "any rank"
    return f"rank {listed[0]}" if len(listed) == 1 else f"ranks {', '.join(listed)}"


class Job:
    """All ranks of one process. ``timeout`` is the longest wait in seconds, None for ever.

    ``lock`` guards everything here and in the groups. The first rank whose function raised is in ``failed``, with what
    it raised in ``error``. Ranks whose function returned are in ``ended``.
    """

    def __init__(self, size: int, timeout: float | None) -> None:
        self.size, self.timeout = size, timeout
        self.lock = threading.Condition()
        self.failed: int | None = None
        self.error: BaseException | None = None
        self.ended: set[int] = set()

    def fail(self, rank: int, error: BaseException) -> None:
        """Note that `rank` ends with `error`, and wake the ranks that wait. The first failure counts."""
        with self.lock:
            if self.failed is None:
                self.failed, self.error = rank, error
            self.lock.notify_all()

    def end(self, rank: int) -> None:
        """Note that the function of `rank` has returned."""
        with self.lock:
            self.ended.add(rank)
            self.lock.notify_all()


class Call:
    """One collective, or one message: what each rank gave, by rank, until it is complete."""

    def __init__(self, what: str, number: int, size: int) -> None:
        self.what, self.number = what, number
        self.parts: list[Any] = [None] * size
        self.posted: set[int] = set()
        self.done = False

    def __str__(self) -> str:
        return f"{self.what} (call {self.number})"


class Group:
    """The ranks of one communicator. ``members`` has their numbers in the job, by their rank here."""

    _serial = itertools.count(1)

    def __init__(self, job: Job, members: list[int]) -> None:
        self.job, self.members, self.size = job, members, len(members)
        self.calls: dict[int, Call] = {}
        self.broken: str | None = None
        self.mail: list[tuple[int, int, int, Any]] = []  # (source, destination, tag, data), in the order of sending
        self.receives: list[tuple[Any, int, Call]] = []  # (whether a message fits, rank, call), in the order of posting

    def check(self, rank: int, what: str) -> None:
        """Raise unless calls can be made: PeerFailure if a rank failed. The lock is held."""
        failed, error = self.job.failed, self.job.error
        if failed is not None and failed != self.members[rank]:
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            raise PeerFailure(f"{what} on rank {rank} of {self.size}: rank {failed} ended by {told}")
        if self.broken is not None:
            raise CollectiveError(f"{what} on rank {rank} of {self.size}: this communicator is broken: {self.broken}")

    def post(
        self, rank: int, number: int, what: str, signature: str, part: Any, execute: Callable[[list[Any]], None]
    ) -> Call:
        """Give `part` to collective `number`. The rank that comes last calls ``execute(parts)`` for all ranks.

        Raises CollectiveMismatch if the call of another rank has another signature.
        """
        with self.job.lock:
            self.check(rank, what)
            call = self.calls.setdefault(number, Call(what, number, self.size))
            for other in call.posted:
                if call.parts[other][0] != signature:
                    text = f"rank {rank}: {signature}; rank {other}: {call.parts[other][0]}"
                    self._break(f"call {number}: the ranks' calls differ: {text}", CollectiveMismatch)
            call.parts[rank] = (signature, part)
            call.posted.add(rank)
            if len(call.posted) == self.size:
                del self.calls[number]
                try:
                    execute([given for _, given in call.parts])
                except (TypeError, ValueError) as error:
                    self._break(f"call {number}, {signature}: {error}", CollectiveMismatch, error)
                call.done = True
                self.job.lock.notify_all()
        return call

    def _break(self, text: str, kind: type[CollectiveError], cause: Exception | None = None) -> None:
        """Break the communicator and raise. The lock is held."""
        self.broken = text
        self.job.lock.notify_all()
        raise kind(text) from cause

    def wait(self, rank: int, call: Call, timeout: float | None) -> None:
        """Wait until `call` is complete. Raises PeerFailure, CollectiveError, and CollectiveTimeout after so many
        seconds, which name ranks."""
        job = self.job
        begin = time.monotonic()
        with job.lock:
            while not call.done:
                missing = self.look(rank, call)
                left = None if timeout is None else begin + timeout - time.monotonic()
                if left is not None and left <= 0:
                    text = f"{call} on rank {rank} of {self.size}: not complete after {timeout:g} s; "
                    self._break(f"{text}waiting for {_named(missing)}", CollectiveTimeout)
                job.lock.wait(left)

    def look(self, rank: int, call: Call) -> list[int]:
        """The ranks that have not come to `call`. PeerFailure if one has failed or ended. The lock is held."""
        self.check(rank, str(call))
        missing = [r for r in range(self.size) if r not in call.posted]
        gone = [r for r in missing if self.members[r] in self.job.ended]
        if gone:
            raise PeerFailure(f"{call} on rank {rank} of {self.size}: the function of {_named(gone)} has ended")
        return missing

    def send(self, source: int, destination: int, tag: int, data: Any) -> None:
        """Deliver `data` to the first receive of `destination` that it fits, or keep it."""
        with self.job.lock:
            self.check(source, "send")
            for entry in self.receives:
                fits, rank, call = entry
                if rank == destination and fits(source, tag):
                    self.receives.remove(entry)
                    self._complete(call, data)
                    return
            self.mail.append((source, destination, tag, data))

    def receive(self, rank: int, source: int | None, fits: Callable[[int, int], bool]) -> Call:
        """Post a receive of a message that ``fits(source, tag)``; the call's first part is its data."""
        with self.job.lock:
            self.check(rank, "receive")
            call = Call("receive", 0, self.size)
            call.posted = set(range(self.size)) - ({source} if source is not None else set())
            for entry in self.mail:
                if entry[1] == rank and fits(entry[0], entry[2]):
                    self.mail.remove(entry)
                    self._complete(call, entry[3])
                    return call
            self.receives.append((fits, rank, call))
        return call

    def _complete(self, call: Call, data: Any) -> None:
        call.parts[0] = data
        call.done = True
        self.job.lock.notify_all()
