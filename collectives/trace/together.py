"""The ranks that recorded a timeline together, at its end: they agree to put it together, and send their parts.

All messages go from or to the first rank. A rank that does not take part any more, because of an exception or a broken
communicator, says so by an empty message and waits for nobody. Waits for messages are watched as those of collectives:
they end when ranks have ended, or at a timeout, and the error names the ranks that are missing.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.signature import Call
from ..arguments.timeouts import LONGEST
from ..core import _core
from ..diagnostics import peer_queries
from ..errors import CollectiveError
from ..system import lifetime
from ..waiting.mpi_calls import MPIWaiting

__all__ = ["Together"]

WHAT = "ending a timeline"
QUICK = 1_000_000  # ns for which a message is only polled for, so that clocks are compared exactly


class Arrivals:
    """Messages that are awaited, one from each of several ranks; a run in the sense of ``waiting.waiting``."""

    def __init__(self, comm: MPI.Intracomm, arrays: Mapping[int, np.ndarray]):
        self.began = time.monotonic()
        self.gone: list[int] = []  # ranks whose message was empty: they send no more
        self._comm, self._arrays = comm, arrays
        self._pending: dict[int, MPI.Request] = {}

    @property
    def plan(self) -> Arrivals:
        """The object that knows which ranks the run waits for: the run itself."""
        return self

    def waiting(self) -> list[int]:
        """Ranks whose messages have not come."""
        return sorted(self._pending)

    def call(self) -> Call:
        """What this rank tells others that it is in."""
        return Call(None, WHAT, "", 0, "", "", None)

    def __str__(self) -> str:
        return WHAT

    def start(self) -> None:
        """Begin to receive."""
        for rank, array in self._arrays.items():
            self._pending[rank] = self._comm.Irecv([array, MPI.BYTE], rank)

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Let MPI progress for up to ``limit`` ns; return whether all messages have come, or one was empty."""
        end, patience = time.monotonic_ns() + limit, _core.Patience()
        while True:
            self._look()
            if self.gone or not self._pending:
                return True
            if time.monotonic_ns() >= end:
                return False
            (os.sched_yield if yield_at_once else patience.give_way)()

    def _look(self) -> None:
        status = MPI.Status()
        for rank, request in list(self._pending.items()):
            if request.Test(status):
                del self._pending[rank]
                if not status.Is_cancelled() and status.Get_count(MPI.BYTE) == 0:
                    self.gone.append(rank)

    def withdraw(self) -> bool:
        """Receive no more; return whether MPI has done with all arrays. Those that it has not are kept in memory."""
        with contextlib.suppress(MPI.Exception):  # a rank has died
            for request in self._pending.values():
                request.Cancel()
            self._look()
        if self._pending:
            lifetime.keep((self._pending, self._arrays))
        return not self._pending


class Together(MPIWaiting):
    """The end of a timeline for the ranks of ``comm``, a communicator of its own, which it frees.

    ``identity`` is that of the library's communicator with the same ranks, by which these ask each other what they do.
    It has the methods by which :mod:`collectives.trace.clocks` sends messages.
    """

    begun = 0
    gpu = None

    def __init__(self, comm: MPI.Intracomm, identity: str, name: str):
        """``name``: equal on all ranks, and that of no other timeline."""
        self.comm = self.internal = comm
        self.identity, self._name = identity, name
        self.set_group(comm.rank, comm.size)
        self.mpi_queries, self.yield_at_once = None, True
        self.neighbours, self.left, self.waits, self.tested = {}, {}, [], {}
        known = next((context for context in peer_queries.contexts() if context.identity == identity), None)
        self._known: Any = weakref.ref(known) if known is not None else lambda: None
        if known is not None:
            self.neighbours, self.stall = known.neighbours, known.stall
        self._sent: list[tuple[MPI.Request, Any]] = []
        self._gone: set[int] = set()  # ranks that send no more
        self._freeable = True

    @property
    def patience(self) -> float | None:
        """The timeout of the library's communicator, in seconds."""
        known = self._known()
        return None if known is None else known.timeout

    @property
    def _partners(self) -> list[int]:
        """The ranks that this one exchanges messages with."""
        return [0] if self.rank else self.others()

    # Messages

    def post(self, array: np.ndarray, rank: int) -> None:
        """Send ``array``, which nobody changes any more, without waiting for its arrival."""
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        self._sent.append((self.comm.Isend([array, MPI.BYTE], rank), array))

    def receive(self, arrays: Mapping[int, np.ndarray], timeout: float | None = LONGEST) -> None:
        """Receive a message from each rank in ``arrays``; CollectiveError if one does not come, or sends no more."""
        run = Arrivals(self.comm, arrays)
        try:
            run.start()
            if not run.wait(True, QUICK):
                self._listen(run, timeout)
        except MPI.Exception as e:
            raise self._translated(run, e) or e from None
        else:
            if run.gone:
                raise CollectiveError(f"rank {', '.join(map(str, run.gone))} left without it")
        finally:
            self._freeable &= run.withdraw()
            self._gone.update(run.gone)

    def _listen(self, run: Arrivals, timeout: float | None) -> None:
        """Wait for messages as one of the waits of the library's communicator, whose ranks are asked about them."""
        known = self._known()
        if known is not None:
            self.waits, self.left, self.mpi_queries = known.waits, known.left, known.mpi_queries
        try:
            self.wait(run, timeout)
        finally:
            self.leave(run)
            self.mpi_queries = None

    def Send(self, array: np.ndarray, rank: int) -> None:  # noqa: N802
        """Send a copy of ``array``."""
        self.post(array.copy(), rank)

    def Recv(self, array: np.ndarray, rank: int) -> None:  # noqa: N802
        """Receive into ``array``."""
        self.receive({rank: array})

    def bcast(self, value: Any, root: int = 0) -> Any:
        """The first rank's ``value`` on all ranks."""
        assert root == 0
        if self.rank:
            return self._take(0)
        for rank in self.others():
            self._give(value, rank)
        return value

    def gather(self, value: Any) -> Iterator[Any]:
        """All ranks' values in order, on the first rank, one by one; nothing on the others."""
        if self.rank:
            self._give(value, 0)
            return iter(())
        return (value if rank == 0 else self._take(rank) for rank in range(self.size))

    def _give(self, value: Any, rank: int) -> None:
        stream = np.frombuffer(pickle.dumps(value), np.uint8)
        self.post(np.array([stream.size]), rank)
        self.post(stream, rank)

    def _take(self, rank: int) -> Any:
        length = np.zeros(1, np.int64)
        self.receive({rank: length})
        stream = np.empty(int(length[0]), np.uint8)
        self.receive({rank: stream})
        return pickle.loads(stream.data)

    # The end

    def meet(self, timeout: float | None) -> None:
        """Wait until all ranks have come to put the timeline together; CollectiveError if one has not in time."""
        here = np.ones(1, np.uint8)
        if self.rank:
            self.post(here, 0)
            self.receive({0: np.empty(1, np.uint8)}, timeout)
            return
        self.receive({rank: np.empty(1, np.uint8) for rank in self.others()}, timeout)
        for rank in self.others():
            self.post(here, rank)

    def settle(self) -> None:
        """Wait until all that was sent is received, once all ranks have come to the end."""
        MPI.Request.Waitall([request for request, _ in self._sent])

    def part_ways(self) -> None:
        """Send no more, and let the communicator be freed with the next one that its ranks make together.

        The other ranks may come to the end later, and find the empty message there.
        """
        known = self._known()
        far = known.mpi_queries.closed(self._partners) if known is not None and known.mpi_queries is not None else []
        for rank in self._partners:
            with contextlib.suppress(MPI.Exception):  # the rank has died
                if rank not in far and not self.has_ended(rank):
                    self.post(np.empty(0, np.uint8), rank)
        if not self._freeable:
            lifetime.keep(self)
            return
        self.identity = self._name
        handles: list[Any] = [self]
        lifetime.watch(self, self, handles)()

    def Free(self) -> None:  # noqa: N802
        """Free the communicator; collective. All ranks have sent their last, so what is under way is received first."""
        for rank in self._partners:
            while rank not in self._gone:
                status = MPI.Status()
                self.comm.Probe(rank, MPI.ANY_TAG, status)
                nbytes = status.Get_count(MPI.BYTE)
                self.comm.Recv([bytearray(nbytes), MPI.BYTE], rank)
                if nbytes == 0:
                    self._gone.add(rank)
        self.settle()
        self.comm.Free()
