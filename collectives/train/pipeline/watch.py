"""How the stages of a pipeline learn that one of them has failed, while they wait for messages."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives import CollectiveTimeout, PeerFailure

from ..deaths import is_death
from ..models.nn import Array
from ..under_way import hold, kept_for_ever, release

__all__ = ["NOTICE", "Watch", "check_prints", "differ"]

NOTICE = 1  # the tag of a failing stage's last words
FAILED = " of the pipeline failed: "  # between the name of a rank and its error
SAME = "the ranks of a pipeline need the same batches"
LONGEST = 1000  # bytes of these
SPIN = 0.002  # seconds for which a wait only gives way to other processes between looks; then it naps
NAP = 1e-5  # seconds of a nap; about 65 us with the timer's slack and the way back to the core
GLANCE = 0.01  # seconds for a late stage to come after all, once the time is over
SLOW = 0.25  # seconds of waiting after which a stage asks whether the others still live


class Watch:
    """Waits for requests on ``messages``, and raises PeerFailure if another rank fails meanwhile.

    ``messages`` is a communicator of the ranks of `comm`, which no other pipeline has. A rank that raises an error
    tells the others by `tell`. A rank that dies cannot: so a rank that waits for long begins a collective on another
    such communicator, to which all come sooner or later. Of a ``collectives.Communicator`` it fails if a rank ends that
    has not come (docs/errors.md), and after the timeout of `comm` it tells who has not. At the end of a step, in
    `settle`, the ranks come to as many of these collectives.

    Stages with batches of different lengths may all wait for each other. So the ranks tell their lengths in `begin`,
    and look at those of the others when they have waited for long. They also tell fingerprints of what they read of a
    batch, since the gradient of one stage's inputs with another stage's labels would be wrong without an error.

    On a mesh a pipeline is one of several, which wait for each other between steps. After `join` the ranks of all of
    them hear of a failure.

    `name` is what others call this rank. The constructor is collective.
    """

    def __init__(self, comm: Any, name: str) -> None:
        self._comm, self._name = comm, name
        self.messages, self._meetings = comm.Dup(), comm.Dup()
        self._begun = 0
        self._meeting: Any = None
        self._telling: Any = None  # the collective of `begin`
        self._mesh: Any = None
        self._heard = [_Notice(self.messages)]

    def join(self, comm: Any) -> None:
        """Take the ranks of a mesh, of which those of this pipeline are some. Collective over `comm`."""
        if self._mesh is None and comm.size > self._comm.size:
            self._mesh = comm.Dup()
            self._heard.append(_Notice(self._mesh))

    def begin(self, what: str, number: int, prints: Sequence[int] = ()) -> None:
        """Begin a step on so many samples, or a stream of so many batches. Collective, but does not wait.

        `prints` are those of a batch (`MicroBatches.prints`).
        """
        self._what, mine = what, np.array([number, *prints], np.int64)
        self._told = np.zeros((self._comm.size, len(mine)), np.int64)
        self._telling = self.messages.Iallgather(mine, self._told)

    def compare(self) -> None:
        """Wait for what all ranks have given to `begin`. Raises ValueError on all ranks unless they are the same."""
        telling, self._telling = self._telling, None
        if telling is not None:
            self.wait(telling, message=False)
            numbers = self._told[:, 0].tolist()
            if len(set(numbers)) > 1:
                raise ValueError(differ(self._what, numbers))
            check_prints(self._told[:, 1:])

    def tell(self, error: BaseException) -> None:
        """Tell the other ranks that this one fails, as far as they live. What others have told goes to its own only."""
        told = getattr(error, "origin", None) is not None
        text = str(error) if told else f"{self._name}{FAILED}{type(error).__name__}: {error}"
        _send(self.messages, text)
        if self._mesh is not None and not told:
            _send(self._mesh, f"rank {self._mesh.rank} of the mesh, {text}")

    def wait(self, request: Any, message: bool = True) -> None:
        """Wait for a request: a message's, or a collective's, which itself finds the deaths of ranks.

        Raises ValueError as `compare`, if that takes long; PeerFailure, which names the stage, if a rank fails before;
        CollectiveTimeout, which names the ranks that are late, if it lasts longer than the communicator's timeout.
        """
        begin, limit = time.monotonic(), getattr(self._comm, "timeout", None)
        held = hold(request)
        while not self._done(request):
            waited = time.monotonic() - begin
            if waited < SPIN:
                os.sched_yield()
                continue
            self._look()
            if message and waited > SLOW:
                if self._telling is not None and self._done(self._telling):
                    self.compare()
                self._meet()
            if limit is not None and waited > limit:
                self._end_late(limit)
            time.sleep(NAP)
        release(held)

    def _done(self, request: Any) -> bool:
        """Whether a request is complete. If it fails since a rank has ended, that rank's last words are the error."""
        try:
            return bool(request.Test())
        except Exception as error:
            if not isinstance(error, PeerFailure) and not is_death(error):
                raise
            self._look()
            if is_death(error):
                raise
            raise PeerFailure(f"a stage of the pipeline ended: {error}") from error

    def cause(self, error: BaseException) -> BaseException:
        """`error`; or the last words of another rank, if `error` says that one has ended, as that of a send may."""
        if isinstance(error, Exception) and is_death(error):
            try:
                self._look()
            except Exception as earlier:
                return earlier
        return error

    def arrive(self, wait: bool) -> None:
        """Look whether a pipeline of the mesh has failed. With `wait`, wait until all ranks of the mesh do so.

        Raises PeerFailure if one has. Collective over the mesh.
        """
        if self._mesh is not None and wait:
            self.wait(self._mesh.Ibarrier(), message=False)
        self._look()

    def _look(self) -> None:
        for notice in self._heard:
            if (text := notice.read()) is not None:
                origin = text.rpartition(FAILED)[2]
                if notice is self._heard[0] and origin.startswith(found := f"ValueError: {SAME}"):
                    raise ValueError(SAME + origin.removeprefix(found))  # which this rank is about to find, too
                failure = PeerFailure(text)
                failure.origin = origin
                raise failure

    def _end_late(self, limit: float) -> None:
        """Raise CollectiveTimeout, which names the ranks that have not come to the collective of those that wait."""
        self._meet()
        said = f"{self._name} of the pipeline waited for {limit:g} s"
        self._meetings.timeout = GLANCE
        try:
            self._meeting.Wait()
        except CollectiveTimeout as error:
            raise CollectiveTimeout(f"{said}; {str(error).partition('; ')[2]}") from error
        raise CollectiveTimeout(f"{said}, and so did the others")

    def _meet(self) -> None:
        """Take part in a collective of the ranks that live. It raises PeerFailure if one does not."""
        if self._meeting is None or self._meeting.Test():
            self._meeting = _begin(self._meetings)
            self._begun += 1

    def settle(self, mine: Array) -> Array:
        """The numbers `mine` of all ranks, by rank. Collective; also ends the collectives that waits have begun."""
        self.compare()
        given = np.append(mine, self._begun).astype(np.float64)
        found = np.zeros((self._comm.size, len(given)))
        self.wait(self.messages.Iallgather(given, found), message=False)
        most = int(found[:, -1].max())
        while self._begun < most:
            if self._meeting is not None:
                self.wait(self._meeting, message=False)
            self._meeting = _begin(self._meetings)
            self._begun += 1
        if self._meeting is not None:
            self.wait(self._meeting, message=False)
            self._meeting = None
        return found[:, :-1].reshape(len(found), *mine.shape)

    def close(self) -> None:
        """Free the communicators. Collective, after `join` over the mesh, outside of steps."""
        for notice in self._heard:
            notice.end()
        for comm in (self.messages, self._meetings, self._mesh):
            if comm is not None:
                comm.Free()


class _Notice:
    """The last words of another rank of `comm`, if there are any."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self._words = kept_for_ever(np.zeros(LONGEST, np.uint8))
        self._request = comm.Irecv(self._words, tag=NOTICE)

    def read(self) -> str | None:
        """The words; None if none have come."""
        return bytes(self._words).rstrip(b"\0").decode(errors="replace") if self._request.Test() else None

    def end(self) -> None:
        """Receive no more."""
        nothing = np.zeros(1, np.uint8)  # not the array of the receive: MPICH aborts
        self._comm.Isend(nothing, self._comm.rank, NOTICE).Wait()
        self._request.Wait()


def _send(comm: Any, text: str) -> None:
    """Send a notice to the other ranks of `comm`, as far as they live."""
    words, told = kept_for_ever(np.zeros(LONGEST, np.uint8)), text.encode()[:LONGEST]
    words[: len(told)] = np.frombuffer(told, np.uint8)
    for rank in range(comm.size):
        if rank != comm.rank:
            try:
                comm.Isend(words, rank, NOTICE)
            except Exception as failure:
                if not is_death(failure):
                    raise


def _begin(comm: Any) -> Any:
    """Begin an all-to-all: in it, each rank waits for every other one itself."""
    nothing: Array = np.zeros(comm.size, np.uint8)
    return comm.Ialltoall(nothing, np.zeros_like(nothing))


def differ(what: str, numbers: Sequence[Any]) -> str:
    """The error of ranks that have begun with different numbers."""
    return f"{SAME}; theirs have {list(numbers)} {what}"


def check_prints(prints: Array) -> None:
    """Raise ValueError unless the ranks, which have a row each, have the same prints but for those that are 0."""
    for column, of_ranks in enumerate(prints.T):
        known = np.flatnonzero(of_ranks)
        if other := [rank for rank in known if of_ranks[rank] != of_ranks[known[0]]]:
            what = f"input {column - 1}" if column else "labels"
            raise ValueError(f"{SAME}; rank {other[0]} has other elements of {what} than rank {known[0]}")
