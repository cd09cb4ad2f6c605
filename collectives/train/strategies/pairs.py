"""Exchanges between an active and a passive rank, for which neither waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..models.nn import Array
from ..under_way import hold, release, settle

REQUEST, REPLY = 1, 2  # tags
ALIGNED = 16  # bytes


class Snapshot:
    """Memory for a copy of all parameters, which is sent as one message.

    ``memory`` has all bytes, the number of the rank that sends them first. ``parts`` are arrays like the parameters.
    """

    def __init__(self, arrays: Sequence[Array], rank: int) -> None:
        lengths = [ALIGNED, *(-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays)]
        starts = np.cumsum(lengths).tolist()
        self.memory = np.zeros(starts[-1], np.uint8)
        self.memory[:8].view(np.int64)[0] = rank
        self.parts = [
            self.memory[start : start + array.nbytes].view(array.dtype)
            for start, array in zip(starts, arrays, strict=False)
        ]

    @property
    def rank(self) -> int:
        """The rank whose parameters these are."""
        return int(self.memory[:8].view(np.int64)[0])

    def take(self, arrays: Sequence[Array]) -> None:
        """Copy the parameters."""
        for part, array in zip(self.parts, arrays, strict=True):
            part[...] = array


def _approach(arrays: Sequence[Array], mine: Sequence[Array], theirs: Snapshot) -> None:
    """Go half of the way from `mine` to `theirs`, which is used up. Both ranks compute the same way, to the bit."""
    for array, sent, other in zip(arrays, mine, theirs.parts, strict=True):
        other -= sent
        other *= other.dtype.type(0.5)
        array += other


class Active:
    """An active rank with its parameters `arrays`: asks one partner at a time."""

    def __init__(self, comm: Any, arrays: Sequence[Array]) -> None:
        self._comm, self._arrays = comm, arrays
        self._offer, self._answer = Snapshot(arrays, comm.rank), Snapshot(arrays, comm.rank)
        self._requests: list[Any] = []
        self._held = -1  # a number of no memory

    @property
    def asking(self) -> bool:
        """Whether an exchange is under way."""
        return bool(self._requests)

    def ask(self, partner: int) -> None:
        """Begin an exchange with rank `partner`."""
        self._offer.take(self._arrays)
        self._held = hold(self._answer, self._offer)
        receive = self._comm.Irecv(self._answer.memory, source=partner, tag=REPLY)
        self._requests = [receive, self._comm.Isend(self._offer.memory, partner, tag=REQUEST)]

    def arrived(self) -> bool:
        """Whether the answer is there. Lets messages proceed."""
        return self.asking and all([request.Test() for request in self._requests])

    def look(self) -> int:
        """Take the answer if it is there. Returns the number of exchanges that this has completed."""
        if not self.arrived():
            return 0
        _approach(self._arrays, self._offer.parts, self._answer)
        self._requests = []
        release(self._held)
        return 1

    def abandon(self) -> None:
        """Let go of the messages, whose communicator was revoked."""
        settle(self._held, self._requests)

    def close(self) -> None:
        """Do nothing: there are no receives but for answers."""


class Passive:
    """A passive rank with its parameters `arrays`: answers all that ask."""

    asking = False

    def __init__(self, comm: Any, arrays: Sequence[Array]) -> None:
        self._comm, self._arrays = comm, arrays
        self._offer = Snapshot(arrays, comm.rank)
        self._receiving: Any = None
        self._replies: list[tuple[Snapshot, Any]] = []  # with their requests
        self._held = -1  # a number of no memory

    def arrived(self) -> bool:
        """Whether a rank asks. Lets messages proceed."""
        if self._receiving is None:
            release(self._held)
            self._held = hold(self._offer, self._replies)
            self._receiving = self._comm.Irecv(self._offer.memory, tag=REQUEST)
        return bool(self._receiving.Test())

    def look(self) -> int:
        """Answer the ranks that ask. Returns the number of exchanges."""
        answered = 0
        while self.arrived():
            source = self._offer.rank
            reply = self._free()
            reply.take(self._arrays)
            self._replies.append((reply, self._comm.Isend(reply.memory, source, tag=REPLY)))
            _approach(self._arrays, reply.parts, self._offer)
            self._receiving = None
            answered += 1
        return answered

    def _free(self) -> Snapshot:
        """Memory for an answer: that of one that has been sent, or new memory."""
        for number, (snapshot, request) in enumerate(self._replies):
            if request.Test():
                del self._replies[number]
                return snapshot
        return Snapshot(self._arrays, self._comm.rank)

    def close(self) -> None:
        """End the receive that is posted, by a message of this rank to itself. No rank may ask meanwhile."""
        for _, request in self._replies:
            request.Wait()
        if self._receiving is not None:
            request = self._comm.Isend(np.zeros(ALIGNED, np.uint8), self._comm.rank, tag=REQUEST)
            self._receiving.Wait()
            request.Wait()
            self._receiving = None
        release(self._held)

    def abandon(self) -> None:
        """Let go of the messages, whose communicator was revoked."""
        requests = [request for _, request in self._replies]
        settle(self._held, requests if self._receiving is None else [*requests, self._receiving])
