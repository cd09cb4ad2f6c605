"""Messages under way, which end by themselves or by the death of the other rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ..deaths import is_death
from ..under_way import hold, release
from .messages import Bytes

LONGEST = 1e-3  # seconds between looks at requests
YIELDS = 20  # looks before the first sleep


class Transfer:
    """A message to or from `peer`. ``failed``: it will not be completed: MPI noticed a death, or it was cancelled."""

    def __init__(self, begin: Callable[[], Any], peer: int) -> None:
        self.peer, self.failed, self._complete = peer, False, False
        self._held = hold(self)
        self._request = self._tried(begin)

    def done(self) -> bool:
        """Whether the message is complete; it is progressed by this call."""
        if not self._complete and not self.failed:
            self._complete = bool(self._tried(self._request.Test))
            if self._complete:
                release(self._held)
        return self._complete

    def cancel(self) -> None:
        """Receive nothing any more, if nothing has come; what is ready by then is lost."""
        if not (self._complete or self.failed) and hasattr(self._request, "Cancel"):  # ranks that are threads need not
            self._request.Cancel()
            self._tried(self._request.Wait)
        self.failed = True  # MPI would call a cancelled request complete
        release(self._held)

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            if not is_death(error):
                raise
            self.failed = True
            release(self._held)
            return None


def send(comm: Any, message: Bytes, peer: int, tag: int) -> Transfer:
    """Begin to send `message`, which must not change until that is done."""
    return Transfer(lambda: comm.Isend(message, dest=peer, tag=tag), peer)


def receive(comm: Any, buffer: Bytes, peer: int, tag: int) -> Transfer:
    """Begin to receive a message, no longer than `buffer`."""
    return Transfer(lambda: comm.Irecv(buffer, source=peer, tag=tag), peer)


class Inbox:
    """Receives messages of one rank, each into memory that is there before it comes.

    So a rank that sends waits only while its own messages are handled, and what many ranks send at once takes no memory
    but that. `capacity` is the length of the longest message, in bytes.
    """

    def __init__(self, comm: Any, peer: int, tag: int, capacity: int) -> None:
        self._comm, self.peer, self._tag = comm, peer, tag
        self._buffers = [np.empty(capacity, np.uint8) for _ in range(2)]
        self._coming = self._next()

    def _next(self) -> Transfer:
        self._buffers.reverse()
        return receive(self._comm, self._buffers[0], self.peer, self._tag)

    @property
    def failed(self) -> bool:
        """Whether no message will come any more: `peer` has died in a job that goes on (ULFM), or after `close`."""
        return self._coming.failed

    def take(self) -> Bytes | None:
        """The next message if it is there. It is valid until the next call."""
        if not self._coming.done():
            return None
        taken = self._buffers[0]
        self._coming = self._next()
        return taken

    def close(self) -> None:
        """Expect no message any more."""
        self._coming.cancel()


class Pause:
    """Rests between looks that found nothing: it yields at first, and then sleeps for longer and longer."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Something was found."""
        self._looks, self._seconds = 0, 2e-5

    def rest(self) -> None:
        """Nothing was found."""
        self._looks += 1
        if self._looks <= YIELDS:
            time.sleep(0)
            return
        time.sleep(self._seconds)
        self._seconds = min(2 * self._seconds, LONGEST)
