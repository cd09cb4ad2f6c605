"""How the stages of a pipeline learn that one of them has failed, while they wait for messages."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from collectives import PeerFailure

from ..deaths import is_death
from ..models.nn import Array

__all__ = ["Watch"]

NOTICE = 1  # the tag of a failing stage's last words
LONGEST = 1000  # bytes of these
SPIN = 200  # looks before a wait sleeps between them
NAP = 5e-5  # seconds between looks
SLOW = 0.25  # seconds of waiting after which a stage asks whether the others still live


class Watch:
    """Waits for requests on `comm`, and raises PeerFailure if another rank fails meanwhile.

    A rank that raises an error tells the others by `tell`. A rank that dies cannot: so a rank that waits for long
    begins a collective on a communicator of its own, to which all come sooner or later. Of a
    ``collectives.Communicator`` it fails if a rank ends that has not come (docs/errors.md). At the end of a step, in
    `settle`, the ranks come to as many of these collectives. The constructor is collective.
    """

    def __init__(self, comm: Any) -> None:
        self._comm, self._meetings = comm, comm.Dup()
        self._begun, self._meeting = 0, None
        self._notice = np.zeros(LONGEST, np.uint8)
        self._request = comm.Irecv(self._notice, tag=NOTICE)
        self._sent: list[Any] = []

    def tell(self, error: BaseException) -> None:
        """Tell the other ranks that this one fails."""
        text = f"stage {self._comm.rank} of the pipeline failed: {type(error).__name__}: {error}"
        words = np.zeros(LONGEST, np.uint8)
        told = text.encode()[:LONGEST]
        words[: len(told)] = np.frombuffer(told, np.uint8)
        for rank in range(self._comm.size):
            if rank != self._comm.rank:
                self._sent.append((self._comm.Isend(words, rank, NOTICE), words))

    def wait(self, request: Any, message: bool = True) -> None:
        """Wait for a request: a message's, or a collective's, which itself finds the deaths of ranks.

        Raises PeerFailure, which names the stage, if a rank fails before.
        """
        begin, looks = time.monotonic(), 0
        while not self._done(request):
            looks += 1
            if looks < SPIN:
                time.sleep(0)
                continue
            self._look()
            if message and time.monotonic() - begin > SLOW:
                self._meet()
            time.sleep(NAP)

    def _done(self, request: Any) -> bool:
        """Whether a request is complete. If it fails since a rank has ended, that rank's last words are the error."""
        try:
            return bool(request.Test())
        except Exception as error:
            if not isinstance(error, PeerFailure) and not is_death(error):
                raise
            self._look()
            raise PeerFailure(f"a stage of the pipeline ended: {error}") from error

    def _look(self) -> None:
        if self._request.Test():
            raise PeerFailure(bytes(self._notice).rstrip(b"\0").decode(errors="replace"))

    def _meet(self) -> None:
        """Take part in a collective of the ranks that live. It raises PeerFailure if one does not."""
        if self._meeting is None or self._meeting.Test():
            self._meeting = _begin(self._meetings)
            self._begun += 1

    def settle(self, mine: float) -> list[float]:
        """The numbers `mine` of all ranks, by rank. Collective; also ends the collectives that waits have begun."""
        given = np.array([mine, self._begun], np.float64)
        found = np.zeros((self._comm.size, 2))
        self.wait(self._comm.Iallgather(given, found), message=False)
        most = int(found[:, 1].max())
        while self._begun < most:
            if self._meeting is not None:
                self.wait(self._meeting, message=False)
            self._meeting = _begin(self._meetings)
            self._begun += 1
        if self._meeting is not None:
            self.wait(self._meeting, message=False)
            self._meeting = None
        return [float(number) for number in found[:, 0]]

    def close(self) -> None:
        """Free the communicator of the collectives. Collective, outside of steps."""
        self._comm.Isend(self._notice, self._comm.rank, NOTICE).Wait()
        self._request.Wait()
        self._meetings.Free()


def _begin(comm: Any) -> Any:
    """Begin an all-to-all: in it, each rank waits for every other one itself."""
    nothing: Array = np.zeros(comm.size, np.uint8)
    return comm.Ialltoall(nothing, np.zeros_like(nothing))
