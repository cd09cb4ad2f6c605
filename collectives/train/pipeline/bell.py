"""How a stage of a pipeline that sleeps is woken by one that has sent it something."""

from __future__ import annotations

import contextlib
import select
import socket
import uuid
import weakref
from typing import Any

from ..agree import together

__all__ = ["Bell"]


class Bell:
    """A Unix socket of each rank of `comm`, to which other ranks of its machine send empty messages.

    MPI has no wait that sleeps. A rank that naps between looks is late by half a nap for every message, and if the
    stages of a pipeline wait for each other in turn, these times add up. Ranks of another machine, or of a container
    with a network of its own, cannot ring. ``ringers`` are the ranks that can ring this one.

    The constructor is collective. It leaves no file: the names of the sockets are abstract.
    """

    def __init__(self, comm: Any) -> None:
        name = f"\0collectives-{uuid.uuid4().hex}"
        self._socket = together(comm, lambda: _bound(name))
        self._close = weakref.finalize(self, self._socket.close)
        names = comm.allgather(name)
        self._reached = {rank: other for rank, other in enumerate(names) if rank != comm.rank and self._send(other)}
        reached = comm.allgather(list(self._reached))
        self.ringers = {rank for rank, others in enumerate(reached) if comm.rank in others}
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def _send(self, name: str) -> bool:
        try:
            self._socket.sendto(b"", name)
        except BlockingIOError:  # so many messages lie there that it wakes in any case
            return True
        except OSError:  # not on this machine, or it has ended
            return False
        return True

    def ring(self, rank: int) -> None:
        """Wake a rank, if it is one of this machine."""
        name = self._reached.get(rank)
        if name is not None:
            self._send(name)

    def ring_all(self) -> None:
        """Wake all other ranks of this machine."""
        for name in self._reached.values():
            self._send(name)

    def sleep(self, milliseconds: int) -> bool:
        """Sleep for so long, or until another rank has rung since the last call; whether one has."""
        rung = bool(self._poll.poll(milliseconds))
        if rung:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._socket.recv(1)
        return rung

    def close(self) -> None:
        """Close the socket. A second call does nothing."""
        self._close()


def _bound(name: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    made.bind(name)
    return made
