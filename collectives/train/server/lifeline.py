"""Who has died, or has ended the program without a word, among ranks that exchange messages only.

Messages alone do not tell: a rank may wait for one that will never come. `lifeline` returns what does.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from collectives import PeerFailure

from ..deaths import dead_ranks, die, is_death, is_loss, missing_ranks, survives

T = TypeVar("T")
EVERY = 0.05  # seconds between looks
NAP = 1e-4  # seconds between looks at an agreement
COLOURS = 2


class Lifeline:
    """Watches the ranks of a communicator. The constructor is collective; `leave` ends the watch.

    ``dead`` has the ranks that are known to have died, in a job that goes on without them (ULFM). Two threads of a rank
    may use it.
    """

    def __init__(self) -> None:
        self.dead: set[int] = set()
        self._lock = threading.Lock()
        self._next = 0.0
        self._leaving = self._left = False

    def look(self) -> None:
        """Note which ranks have died. PeerFailure if a rank has ended and the job cannot go on without it.

        It looks every 50 ms.
        """
        if self._left or time.monotonic() < self._next or not self._lock.acquire(blocking=False):
            return
        try:
            self._next = time.monotonic() + EVERY
            self._look()
        finally:
            self._lock.release()

    def leave(self) -> bool:
        """Need nobody any more, and begin to wait. Returns whether no live rank needs this one; PeerFailure as `look`.

        It is called again until it is True.
        """
        with self._lock:
            if not self._leaving:
                self._leaving = True
                self._begin()
        return self.left()

    def left(self) -> bool:
        """What `leave` returns, without leaving."""
        with self._lock:
            if self._leaving and not self._left:
                self._left = self._all_leave()
            return self._left

    def together(self, work: Callable[[Any], None]) -> bool:
        """Call ``work(comm)``, which is collective on a communicator of all ranks. Collective.

        Returns whether it has ended well on all ranks. All live ranks get the same answer, and none calls `work` after
        a death that is known before it; what it has done is to be dropped then.
        """
        raise NotImplementedError

    def among_living(self, work: Callable[[Any], T]) -> T:
        """``work(comm)``, where `comm` has all live ranks in their order, and `work` is collective on it. Collective.

        If a rank dies meanwhile, the others call `work` again, with a communicator without it, and know it as dead.
        """
        raise NotImplementedError

    def close(self, *others: Any) -> None:
        """Use this object no more, and free `others`, communicators of the same ranks. Collective, after `leave`."""

    def _look(self) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        raise NotImplementedError

    def _all_leave(self) -> bool:
        raise NotImplementedError


class Meetings(Lifeline):
    """A lifeline in a job that ends when a rank dies. It watches the ranks whose `colour`, 0 or 1, is another one.

    A rank that waits in a collective of a ``collectives.Communicator`` learns how the others end (docs/errors.md). So a
    rank that looks for the first time begins a collective that ranks of another colour come to only when they need
    nobody any more. While it waits for messages, it looks at that.
    """

    def __init__(self, comm: Any, colour: int) -> None:
        super().__init__()
        self._comm, self._colour = comm, colour
        self._comms = [comm.Dup() for _ in range(COLOURS)]
        self._meetings: dict[int, Any] = {}  # by colour

    def _come_to(self, colour: int) -> None:
        if colour not in self._meetings:
            self._meetings[colour] = _meeting(self._comms[colour])

    def _look(self) -> None:
        self._come_to(self._colour)
        self._meetings[self._colour].Test()

    def _begin(self) -> None:
        for colour in range(COLOURS):
            self._come_to(colour)

    def _all_leave(self) -> bool:
        return all([meeting.Test() for meeting in self._meetings.values()])

    def together(self, work: Callable[[Any], None]) -> bool:
        """See `Lifeline.together`. A death raises PeerFailure."""
        work(self._comm)
        return True

    def among_living(self, work: Callable[[Any], T]) -> T:
        """See `Lifeline.among_living`. A death raises PeerFailure."""
        return work(self._comm)

    def close(self, *others: Any) -> None:
        """See `Lifeline.close`."""
        for comm in (*self._comms, *others):
            comm.Free()


def _meeting(comm: Any) -> Any:
    """Begin a collective that ends when all ranks of `comm` have come to it; returns its request.

    In an all-to-all each rank waits for every other one itself, and so learns how that one ends; in a barrier it may
    wait for a neighbour only, which waits for the others.
    """
    from mpi4py import MPI

    chooses = hasattr(comm, "explain") and MPI.Query_thread() == MPI.THREAD_MULTIPLE
    how = {"algorithm": "linear"} if chooses else {}
    return comm.Ialltoall(np.zeros(comm.size, np.uint8), np.zeros(comm.size, np.uint8), **how)


class Survival(Lifeline):
    """A lifeline in a job that goes on when a rank dies (User Level Failure Mitigation, ULFM).

    MPI tells which ranks have died. A rank whose program ends before `leave`, by an exception for example, ends itself
    by a signal and counts as dead: otherwise it would wait in MPI_Finalize for the others, and they for its messages.
    So a rank either dies, which MPI tells all others, or goes on.

    Ranks part by an agreement (MPI_Comm_iagree), not by a collective that messages of the dead may have completed on
    some ranks only. An agreement is complete as soon as all ranks that live have begun it, also if others die meanwhile
    or have died in it, and has the same result everywhere. As every live rank comes to it, and messages are handled
    while it is under way, no rank waits for ever. What depends on whether a rank has died, and needs all, is decided by
    an agreement, too: ranks learn of a death at different moments.
    """

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        super().__init__()
        self._comm = comm.Dup()
        self._plain = MPI.Intracomm(comm).Dup()
        self._whole = True  # whether all ranks agree that none has died
        self._agreement: Agreement | None = None
        atexit.register(self._end_process)

    def _end_process(self) -> None:
        die()

    def _look(self) -> None:
        self.dead.update(dead_ranks(self._plain))

    def _begin(self) -> None:
        self._look()
        self._agreement = Agreement(self._plain, self._whole and not self.dead)

    def _all_leave(self) -> bool:
        assert self._agreement is not None
        if not self._agreement.done():
            return False
        self._look()
        self._whole = self._agreement.well
        return True

    def _agree(self, well: bool) -> bool:
        """Whether all live ranks are `well`. Collective."""
        agreement = Agreement(self._plain, well)
        while not agreement.done():
            time.sleep(NAP)
        self._look()
        self._whole &= agreement.well
        return agreement.well

    def together(self, work: Callable[[Any], None]) -> bool:
        """See `Lifeline.together`."""
        self._look()
        if not self._agree(self._whole and not self.dead):
            return False
        well = True
        try:
            work(self._comm)
        except Exception as error:
            if not (isinstance(error, PeerFailure) or is_death(error)):
                raise
            well = False
        if not self._agree(well):
            self._comm = self._comm.shrink()  # it is broken on some ranks; MPI_Finalize would wait for what is left
        return self._whole

    def among_living(self, work: Callable[[Any], T]) -> T:
        """See `Lifeline.among_living`."""
        while True:
            found: list[T] = []
            failure: Exception | None = None
            try:
                found.append(work(self._comm))
            except Exception as error:
                if not is_loss(error):
                    raise
                failure = error
            if self._agree(failure is None):
                return found[0]
            size, self._comm = self._comm.size, self._comm.shrink()
            if self._comm.size == size:
                raise PeerFailure("a collective of the live ranks failed, although none has died") from failure
            self.dead.update(missing_ranks(self._plain, self._comm))

    def close(self, *others: Any) -> None:
        """See `Lifeline.close`. Nothing is freed if a rank has died, or dies meanwhile: MPI keeps those."""
        atexit.unregister(self._end_process)
        for comm in (self._comm, self._plain, *others) if self._whole else ():
            try:
                comm.Free()
            except Exception as error:
                if not is_loss(error):
                    raise
                if survives(comm):  # a communicator of this library's, of which MPI_Finalize must not wait for anything
                    comm.Revoke()
                return


class Agreement:
    """An agreement that is under way on `comm`, a communicator of MPI's: whether all live ranks are `well`."""

    def __init__(self, comm: Any, well: bool) -> None:
        self._flag = np.array([int(well)], np.int32)
        self._request = comm.Iagree(self._flag)

    def done(self) -> bool:
        """Whether it is complete; ``well`` is the result then."""
        if self._request is not None:
            try:
                if not self._request.Test():
                    return False
            except Exception as error:  # the flag is set all the same
                if not is_death(error):
                    raise
            self._request = None
        return True

    @property
    def well(self) -> bool:
        """The result, the same on all live ranks."""
        return bool(self._flag[0])


def lifeline(comm: Any, colour: int) -> Lifeline:
    """A lifeline of the ranks of `comm`, which tells a rank that waits for messages whether those that send them live.

    Collective. `colour` is 0 or 1, ValueError else; each rank exchanges messages with ranks of the other colour.
    """
    if colour not in range(COLOURS):
        raise ValueError(f"colour: 0 or 1, not {colour}")
    return Survival(comm) if survives(comm) else Meetings(comm, colour)
