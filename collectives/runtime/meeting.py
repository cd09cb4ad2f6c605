"""Communicators being made or freed: all ranks meet first, in waits that have a bound and a name.

What MPI has for this waits inside MPI, for as long as it takes: MPI_Comm_dup, MPI_Comm_split, MPI_Comm_free. So ranks
meet before it, in an all-reduce that also finds who is in another method, and exchange what they must agree on by
non-blocking collectives.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.signature import Call
from ..arguments.timeouts import stall_from_environment, timeout_from_environment
from ..core import _core
from ..diagnostics import peer_queries
from ..diagnostics.diagnosis import Answer, position
from ..errors import CollectiveError
from ..system import lifetime
from ..waiting import watchdog
from ..waiting.dump import dump_on_signal
from ..waiting.mpi_calls import MPIRun, MPIWaiting, watch_finalize
from ..waiting.watching import Wait
from .reference import Message, Messages, Walk

__all__ = ["FRAME", "Making", "framed", "meeting", "unframed"]

FRAME = 576  # bytes of a pickled object that one exchange carries, its length included
_HEAD = np.dtype(np.int64).itemsize


class Stranger(MPIWaiting):
    """Waits for the ranks of a communicator that is not the library's yet; what fails here breaks no other one.

    Another communicator of the same ranks, where there is one, knows how to ask them.
    """

    mpi_queries = None
    begun = 0
    _known: MPIWaiting | None = None

    def __init__(self, comm: MPI.Intracomm):
        self.internal = comm
        self.set_group(comm.rank, comm.size)
        self.neighbours, self.left, self.waits, self.tested = {}, {}, [], {}
        self.yield_at_once = True  # there may be more ranks than cores
        self.identity = f"stranger {id(self)}"  # nobody asks for it
        try:
            self.timeout = timeout_from_environment()
        except ValueError:  # rank 0's is looked at when all are there
            self.timeout = None
        try:
            self.stall = stall_from_environment()
        except ValueError:
            self.stall = None
        peer_queries.register(self.identity, self)

    def _go_on(self, wait: Any, progressing: Any, timeout: float | None, limit: int) -> None:
        """Who asks the known communicator what this rank does is told of this wait, too.

        It is looked for here, where a rank has waited for long enough to need it.
        """
        self._know(_same_ranks(self.internal))
        waits = [] if self._known is None else self._known.waits
        waits.append(wait)
        try:
            super()._go_on(wait, progressing, timeout, limit)
        finally:
            waits.remove(wait)

    def _know(self, known: MPIWaiting | None) -> None:
        """Ask by the means, and under the name, of a known communicator."""
        self._known = known
        if known is not None:
            self.identity, self.begun = known.identity, known.begun
            self.neighbours, self.mpi_queries, self.left = known.neighbours, known.mpi_queries, known.left

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others do; alone, where nobody can be asked."""
        if self._known is not None:
            return super().parties(run, behind, again)
        return [Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))]

    def judged(self, run: Any, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
        """As elsewhere, but for failures of the known communicator, which are nothing to this one."""
        return super().judged(run, answer._replace(failure=None))

    def note(self, run: Any, error: BaseException) -> None:
        """A run ended early; MPI_Finalize may not end for it, and the others see that nobody waits for them here."""
        lifetime.keep(run)
        if self.broken is None:
            self.broken = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")


def _same_ranks(comm: MPI.Intracomm) -> MPIWaiting | None:
    """The library's side of another communicator of the same ranks, which knows how to ask them; the oldest."""
    for context in peer_queries.contexts():
        known = isinstance(context, MPIWaiting) and not isinstance(context, Stranger)
        if known and context.broken is None and context.internal != MPI.COMM_NULL:
            if MPI.Comm.Compare(context.internal, comm) in (MPI.IDENT, MPI.CONGRUENT):
                return context
    return None


def _watch_over_this_process() -> None:
    """From the first communicator's making on."""
    dump_on_signal()
    watch_finalize()
    watchdog.watch()


@functools.cache
def _given_up() -> int:
    """The key of a communicator's attribute: the agreement on it that this rank gave up."""
    return MPI.Comm.Create_keyval()


class Agreement:
    """Whether all ranks of a communicator are in the same method: the least ``code`` is the greatest.

    By two all-reduces of MPI's: a rank that gives up leaves its part in the first one, which would let those that come
    later go on to MPI's own call, and wait there for ever; to the second one it does not come. MPI cannot take back the
    one that is under way, so whoever tries again goes on with it.
    """

    def __init__(self, comm: MPI.Intracomm, code: int):
        self.code = code
        self._comm, self._round, self._failures = comm, 0, 0
        self._request: MPI.Request | None = None
        self._mine, self._least = np.array([code, -code]), np.empty(2, np.int64)

    def reached(self, making: Making) -> bool:
        """Wait for the other ranks; an exception of the wait leaves all as it is for another try."""
        try:
            while self._round < 2 and (self._round == 0 or self._alike()):
                if self._request is None:
                    self._request = self._comm.Iallreduce(self._mine, self._least, MPI.MIN)
                making.wait(self._request, (self._mine, self._least))
                self._request, self._round = None, self._round + 1
        except BaseException:
            if self._failures == 0:
                self._comm.Set_attr(_given_up(), self)
            self._failures += 1
            raise
        if self._failures:
            self._comm.Delete_attr(_given_up())
            for _ in range(self._failures):
                _core.mended()
        return self._alike()

    def _alike(self) -> bool:
        return np.array_equal(self._mine, self._least)


def framed(stream: bytes) -> np.ndarray:
    """A stream with its length before it, or as much of both as there is room for."""
    frame = np.zeros(FRAME, np.uint8)
    head = len(stream).to_bytes(_HEAD, "little") + stream[: FRAME - _HEAD]
    frame[: len(head)] = np.frombuffer(head, np.uint8)
    return frame


def unframed(frames: np.ndarray) -> Iterator[Any]:
    """The objects whose streams are in frames."""
    return (pickle.loads(row[_HEAD:].data) for row in frames)


class Making:
    """What waits for the ranks that make or free a communicator together; see :func:`meeting`."""

    def __init__(self, context: Any, comm: MPI.Intracomm, call: Call, ranks: list[int]):
        self.context = context
        self._comm, self._call, self._ranks = comm, call, ranks

    def run(self, request: MPI.Request | None = None, buffers: Any = None) -> MPIRun:
        """A part of it, to be waited for."""
        made = MPIRun(self._call.collective, self._call, buffers)
        made.request, made.ranks = request, self._ranks
        return made

    def wait(self, request: MPI.Request, buffers: Any = None) -> None:
        """Wait for a part of it."""
        self.context.wait_for_mpi(self.run(request, buffers))

    def gather(self, comm: MPI.Intracomm, obj: Any) -> Iterator[Any]:
        """An object of every rank of a communicator, on all of them; unpickled one by one, as they are asked for."""
        stream = pickle.dumps(obj)
        frames = np.empty((comm.size, FRAME), np.uint8)
        self.wait(comm.Iallgather(frame := framed(stream), frames), (frame, frames))
        lengths = frames[:, :_HEAD].copy().view(np.int64)[:, 0]
        if lengths.max() <= FRAME - _HEAD:
            return unframed(frames)
        del frames
        mine, everything = np.frombuffer(stream, np.uint8), np.empty(lengths.sum(), np.uint8)
        self.wait(comm.Iallgatherv(mine, [everything, lengths]), (mine, everything))
        return (pickle.loads(part.data) for part in np.split(everything, np.cumsum(lengths)[:-1]))

    def meet(self, by_engine: bool) -> None:
        """Wait until all ranks are in the same method; CollectiveMismatch where they are not."""
        code = zlib.crc32(self._call.collective.encode())
        mine = np.array([code, -code])
        if by_engine:
            alike = np.array_equal(self.context.least(mine, self._call), mine)
        else:
            alike = self._agreement(code).reached(self)
        if not alike:
            self.context.fail(self.run(), _core.MismatchError("the ranks make or free communicators in different ways"))

    def _agreement(self, code: int) -> Agreement:
        """A new one; on a communicator of the program's, which may be tried again, the one that was given up."""
        found: Any = self._comm.Get_attr(_given_up())
        if found is None:
            return Agreement(self._comm, code)
        if found.code != code:
            raise CollectiveError(
                f"{self._call.collective}: this rank gave up making another communicator from this one, which the "
                "other ranks may be at still"
            )
        return found

    def meet_some(self, members: Sequence[int], tag: int) -> None:
        """Wait until some of the ranks are here, by messages."""
        self.context.wait_for_mpi(Walk(self._rounds(members, tag), self._call, 0, None))

    def _rounds(self, members: Sequence[int], tag: int) -> Iterator[Messages]:
        """A barrier of some of the ranks, by dissemination."""
        place, size, token, step = members.index(self._comm.rank), len(members), bytearray(1), 1
        while step < size:
            there, here = members[(place + step) % size], members[(place - step) % size]
            receive = self._comm.Irecv([bytearray(1), MPI.BYTE], here, tag)
            send = self._comm.Isend([token, MPI.BYTE], there, tag)
            yield [Message(send, there, comes=False), Message(receive, here, comes=True)]
            step *= 2


@contextlib.contextmanager
def meeting(
    what: str, comm: MPI.Intracomm, context: Any = None, members: Sequence[int] | None = None, tag: int = 0,
    call: Call | None = None, by_engine: bool = True,
) -> Iterator[Making]:  # fmt: skip
    """``with meeting("creating a communicator by Dup", comm, context) as making``: all ranks are there within it.

    ``context`` is the library's side of ``comm``, where there is one: the call is one of its calls then. ``members``
    are the ranks that take part, where not all do; they meet by messages with a ``tag``. ``call`` describes it to the
    others, where it is more than ``what``. ``by_engine``: the node-local engine may still be used.
    """
    ranks = [rank for rank in members or range(comm.size) if rank != comm.rank]
    by_engine = by_engine and context is not None and context.apart is None
    call = call or Call(None, what, "", 0, "", "", None)
    asking = context or Stranger(comm)
    asking.check()
    _watch_over_this_process()
    if context is not None and members is None:
        if not by_engine:  # which counts its own
            made = call
            context.count_mpi(lambda: made)
        call = call._replace(number=context.begun + by_engine)
    making = Making(asking, comm if context is None else context.internal, call, ranks)
    if members is None:
        making.meet(by_engine)
    else:
        making.meet_some(members, tag)
    with Wait(making.run(), asking.timeout, asking.waits):
        try:
            yield making
        except Exception:  # MPI's, or of an argument: all ranks have it
            raise
        except BaseException as e:  # KeyboardInterrupt: the others are in MPI's call
            asking.note(making.run(), e)
            raise
