"""Who has died, or has ended the program without a word, among ranks that exchange messages only.

Messages alone do not tell: a rank may wait for one that will never come. Collectives of a ``collectives.Communicator``
do, since a rank that waits in one learns how the others end (docs/errors.md). So every rank begins a collective that
ranks of another colour come to only when they need nobody any more. While it waits for messages, it looks at that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from collectives import PeerFailure

from ..deaths import dead_ranks

EVERY = 0.05  # seconds between looks
NOTICE = 3.0  # seconds in which MPI reports a death that this library has found

COLOURS = 2


class Lifeline:
    """Watches the ranks of `comm` whose `colour` (0 or 1) is another one. The constructor is collective.

    ``dead`` has the ranks that are known to have died, in a job that goes on without them (ULFM). These may be of the
    same colour, too.
    """

    def __init__(self, comm: Any, colour: int) -> None:
        self._comms = [comm.Dup() for _ in range(COLOURS)]
        self._colour, self._request = colour, _meeting(self._comms[colour])
        self._survives = getattr(comm, "why_no_shrink", "") is None
        self._broken: set[int] = set()  # colours of communicators that a death has broken
        self._lock = threading.Lock()
        self._next = 0.0
        self.dead: set[int] = set()

    def look(self) -> None:
        """Note which ranks have died. PeerFailure if a rank has ended and the job cannot go on without it.

        Two threads may call it. It looks every 50 ms.
        """
        if time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._next = time.monotonic() + EVERY
            if self._colour not in self._broken:
                self._outlive(self._colour, self._request.Test)
            if self._survives:
                self.dead.update(dead_ranks(self._comms[self._colour]))
        finally:
            self._lock.release()

    def _outlive(self, colour: int, call: Callable[[], Any]) -> None:
        """Call a method of a meeting. If it fails by a death, note the dead, once MPI knows them, too.

        PeerFailure if MPI hears of none.
        """
        try:
            call()
        except PeerFailure:
            comm, end = self._comms[colour], time.monotonic() + NOTICE
            if not self._survives:
                raise
            while not dead_ranks(comm):
                if time.monotonic() > end:
                    raise
                time.sleep(EVERY)
            self.dead.update(dead_ranks(comm))
            self._broken.add(colour)

    def end(self) -> None:
        """Need nobody any more, and wait until no rank needs this one. Collective over the ranks that live.

        PeerFailure as in `look`.
        """
        for colour, comm in enumerate(self._comms):
            if colour == self._colour and colour not in self._broken:
                self._outlive(colour, self._request.Wait)
            elif colour not in self._broken:
                self._outlive(colour, lambda comm=comm: _meeting(comm).Wait())  # type: ignore[misc]
        for comm in self._comms:
            (comm.shrink() if self._survives else comm).Free()


def _meeting(comm: Any) -> Any:
    """Begin a collective that ends when all ranks of `comm` have come to it; returns its request.

    In an all-to-all each rank waits for every other one itself, and so learns how that one ends; in a barrier it may
    wait for a neighbour only, which waits for the others.
    """
    from mpi4py import MPI

    chooses = hasattr(comm, "explain") and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    how = {"algorithm": "linear"} if chooses else {}
    return comm.Ialltoall(np.zeros(comm.size, np.uint8), np.zeros(comm.size, np.uint8), **how)
