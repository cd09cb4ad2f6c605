"""A socket of this process alone: forked children close their copies of it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable

__all__ = ["OwnSocket"]


class OwnSocket:
    """A socket that the first call of :meth:`get` makes. A forked child has none until it calls :meth:`get` itself.

    The child closes its copy, so that the parent's address is free when the parent ends.
    """

    def __init__(self, make: Callable[[], socket.socket]):
        """``make()`` returns the socket; OSError if the system denies it."""
        self._make = make
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self) -> socket.socket:
        """The socket; OSError if the system denies it."""
        with self._lock:
            if self._socket is None:
                self._socket = self._make()
            return self._socket

    def _after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held it
        if self._socket is not None:
            self._socket.close()
            self._socket = None
