"""Receives from any rank, on several hosts: they look for their messages themselves."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["Receives", "Unmatched", "match_all"]

_waiting: dict[int, Receives] = {}  # by id: those of all groups that have receives


def match_all() -> None:
    """Find messages for the receives of all groups. Whoever waits for anything else calls this again and again: what
    it waits for may come only after a message that another rank sends. Errors are those of the receives' own tests."""
    for receives in list(_waiting.values()):
        with contextlib.suppress(Exception):
            receives.match()


class Receives:
    """Receives from any rank that have no message yet, and those with the same tag that were begun after them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may test a receive within a test
        self.receives: list[Unmatched] = []
        self._matching = False

    def add(self, receive: Unmatched) -> None:
        """Take a receive, the last one. The caller has the lock."""
        self.receives.append(receive)
        _waiting[id(self)] = self

    def remove(self, receive: Unmatched) -> None:
        """Let go of a receive. The caller has the lock."""
        self.receives.remove(receive)
        if not self.receives:
            _waiting.pop(id(self), None)

    def waits_for(self, tag: int) -> bool:
        """Whether a receive from any rank waits for a message with this tag, which is then the first to get one."""
        with self.lock:
            return any(receive.tag == tag for receive in self.receives)

    def match(self) -> None:
        """Find messages for the receives. Of receives with one tag, the first gets the first message."""
        if not self.receives:
            return
        with self.lock:
            if self._matching:  # what a signal handler interrupts goes on after it
                return
            self._matching = True
            try:
                tags: set[int] = set()
                for receive in list(self.receives):
                    if receive.tag not in tags and receive.match():
                        self.remove(receive)
                    else:
                        tags.add(receive.tag)
            finally:
                self._matching = False


class Unmatched:
    """A receive in a `Receives`, with the methods of a request. It looks for its message when it is tested.

    One from a given rank becomes a receive of MPI's when none from any rank is before it. If messages come by shared
    memory and by a network, MPICH 5.0.2 loses some of those that an ``Irecv`` from any rank could take in both ways.
    """

    def __init__(self, mpi: Any, comm: Communicator, buffer: list[Any], source: int, tag: int, queue: Receives):
        self._any, self._comm, self._buffer, self._queue = mpi.ANY_SOURCE, comm, buffer, queue
        self._source, self.tag = source, tag
        self._request: Any = None
        self._none = mpi.REQUEST_NULL
        with queue.lock:
            queue.add(self)

    def Cancel(self) -> None:
        """As ``Cancel`` of a request."""
        with self._queue.lock:
            if self._request is None:
                self._queue.remove(self)
                self._request = self._none
                return
        self._request.Cancel()

    def match(self) -> bool:
        """Begin to receive a message, if there is one for a receive from any rank; whether that was done."""
        if self._source != self._any:
            self._request = self._comm.Irecv(self._buffer, self._source, self.tag)
            return True
        found = self._comm.Improbe(self._any, self.tag)
        if found is not None:
            self._request = found.Irecv(self._buffer)
        return found is not None

    def __bool__(self) -> bool:
        """As of a request: whether it is under way."""
        return self._request is None or bool(self._request)

    def Test(self, status: Any) -> bool:
        """As ``Test`` of a request."""
        if self._request is None:
            self._queue.match()
        return self._request is not None and self._request.Test(status)
