"""The synchronisation of ranks before they make or free a communicator, with timeouts and error messages.

MPI_Comm_dup, MPI_Comm_split and MPI_Comm_free wait inside MPI without a bound. So ranks synchronise before such a call,
by an all-reduce that also detects ranks in another method, and exchange what they must agree on by non-blocking
collectives.
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

FRAME = 576  # bytes of one frame: the length of a pickled object, and its first bytes
PATIENCE = 5.0  # least timeout in seconds of a part, once all ranks have come: they could not undo it together
_HEAD = np.dtype(np.int64).itemsize


class Stranger(MPIWaiting):
    """Waits for the ranks of a communicator that the library does not know yet; a failure breaks no other communicator.

    If there is a communicator of the library's with the same ranks, its addresses serve to ask them.
    """

    mpi_queries = None
    begun = 0
    _known: MPIWaiting | None = None

    def __init__(self, comm: MPI.Intracomm, timeout: float | None = None):
        self.internal = comm
        self.set_group(comm.rank, comm.size)
        self.neighbours, self.left, self.waits, self.tested = {}, {}, [], {}
        self.yield_at_once = True  # there may be more ranks than cores
        self.identity = f"stranger {id(self)}"  # other ranks do not know this name
        try:
            self.timeout = timeout_from_environment() if timeout is None else timeout
        except ValueError:  # rank 0's setting is checked later, when all ranks can raise the error
            self.timeout = None
        try:
            self.stall = stall_from_environment()
        except ValueError:
            self.stall = None
        peer_queries.register(self.identity, self)

    def _go_on(self, wait: Any, progressing: Any, timeout: float | None, limit: int) -> None:
        """Go on with a wait that has taken a slice; list it with the known communicator as well, for ranks that ask.

        The known communicator is looked for only now, since short waits do not need it.
        """
        self._know(_same_ranks(self.internal))
        waits = [] if self._known is None else self._known.waits
        waits.append(wait)
        try:
            super()._go_on(wait, progressing, timeout, limit)
        finally:
            waits.remove(wait)

    def _know(self, known: MPIWaiting | None) -> None:
        """Ask other ranks through the addresses of ``known``, and under its name."""
        self._known = known
        if known is not None:
            self.identity, self.begun = known.identity, known.begun
            self.neighbours, self.mpi_queries, self.left = known.neighbours, known.mpi_queries, known.left

    def parties(self, run: Any, behind: list[int], again: bool = False) -> list[Answer]:
        """What this rank and the others are doing; only this rank if the others cannot be asked."""
        if self._known is not None:
            return super().parties(run, behind, again)
        return [Answer(self.rank, run.call(), self.begun, position(threading.get_ident()))]

    def judged(self, run: Any, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
        """Why ``run`` will never end, according to ``answer``; failures of the known communicator are ignored."""
        return super().judged(run, answer._replace(failure=None))

    def note(self, run: Any, error: BaseException) -> None:
        """Record that ``run`` has ended early by ``error``, since MPI_Finalize might hang; other ranks are not told."""
        lifetime.keep(run)
        if self.broken is None:
            self.break_by(error)


def _same_ranks(comm: MPI.Intracomm) -> MPIWaiting | None:
    """The oldest communicator of the library's with the ranks of ``comm`` in their order, or None."""
    for context in peer_queries.contexts():
        known = isinstance(context, MPIWaiting) and not isinstance(context, Stranger)
        if known and context.broken is None and context.internal != MPI.COMM_NULL:
            if MPI.Comm.Compare(context.internal, comm) in (MPI.IDENT, MPI.CONGRUENT):
                return context
    return None


def _watch_over_this_process() -> None:
    """Start what watches this process: SIGUSR2, MPI_Finalize and the watchdog; repeated calls have no effect."""
    dump_on_signal()
    watch_finalize()
    watchdog.watch()


@functools.cache
def _given_up() -> int:
    """The key of a communicator's attribute that holds an :class:`Agreement` which this rank gave up."""
    return MPI.Comm.Create_keyval()


class Agreement:
    """Find out whether all ranks of a communicator are in the same method: the minimum of ``code`` is its maximum.

    There are two all-reduces of MPI's. A rank that gives up in the first one has contributed to it all the same: ranks
    that come later would complete it, go on to MPI's own call, and wait there for ever. The second all-reduce stops
    them. MPI cannot cancel a collective, so a rank that tries again continues with the one under way.
    """

    def __init__(self, comm: MPI.Intracomm, code: int):
        self.code = code
        self._comm, self._round, self._failures = comm, 0, 0
        self._request: MPI.Request | None = None
        self._mine, self._least = np.array([code, -code]), np.empty(2, np.int64)

    def reached(self, making: Making) -> bool:
        """Wait for the other ranks; return whether all have the same code. After an exception it can be tried again."""
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
    """A frame: the length of ``stream`` and as much of it as fits, in FRAME bytes."""
    frame = np.zeros(FRAME, np.uint8)
    head = len(stream).to_bytes(_HEAD, "little") + stream[: FRAME - _HEAD]
    frame[: len(head)] = np.frombuffer(head, np.uint8)
    return frame


def unframed(frames: np.ndarray) -> Iterator[Any]:
    """The objects that the rows of ``frames`` hold; each must fit in its frame."""
    return (pickle.loads(row[_HEAD:].data) for row in frames)


class Making:
    """Waits for the ranks that make or free a communicator together; see :func:`meeting`."""

    undone = False  # all ranks have failed alike: what has been made is to be freed
    whole: Wait | None = None  # all of it, once the ranks have met

    def __init__(self, context: Any, comm: MPI.Intracomm, call: Call, ranks: list[int]):
        self.context = context
        self._comm, self._call, self._ranks = comm, call, ranks

    def run(self, request: MPI.Request | None = None, buffers: Any = None) -> MPIRun:
        """A run for one part of the method, which waits for ``request``."""
        made = MPIRun(self._call.collective, self._call, buffers)
        made.request, made.ranks = request, self._ranks
        return made

    def begin(self) -> Wait:
        """All of it, now that the ranks have met; the parts have a longer timeout than the meeting if that is short."""
        timeout = self.context.timeout
        timeout = timeout if timeout is None else max(timeout, PATIENCE)
        self.whole = Wait(self.run(), timeout, self.context.waits)
        return self.whole

    def wait(self, request: MPI.Request, buffers: Any = None) -> None:
        """Wait for a part of it, for as long as the timeout allows each."""
        timeout = None
        if self.whole is not None:
            self.whole.key = object()
            timeout = self.whole.timeout
        self.context.wait_for_mpi(self.run(request, buffers), timeout)

    def gather(self, comm: MPI.Intracomm, obj: Any) -> Iterator[Any]:
        """All-gather ``obj``; returns an iterator over all ranks' objects, which unpickles them one by one."""
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
        """Wait until all ranks have come to this point; CollectiveMismatch if some are in another method."""
        code = zlib.crc32(self._call.collective.encode())
        mine = np.array([code, -code])
        if by_engine:
            alike = np.array_equal(self.context.least(mine, self._call), mine)
        else:
            alike = self._agreement(code).reached(self)
        if not alike:
            self.context.fail(
                self.run(), _core.MismatchError("the ranks make or free communicators by different methods")
            )

    def _agreement(self, code: int) -> Agreement:
        """A new agreement, or the one that this rank gave up earlier on this communicator and now tries again."""
        found: Any = self._comm.Get_attr(_given_up())
        if found is None:
            return Agreement(self._comm, code)
        if found.code != code:
            raise CollectiveError(
                f"{self._call.collective}: this rank gave up making another communicator from this one, and other "
                "ranks may still be in that call; repeat it first"
            )
        return found

    def meet_some(self, members: Sequence[int], tag: int) -> None:
        """Wait until the ranks in ``members`` have come to this point, by messages with ``tag``."""
        self.context.wait_for_mpi(Walk(self._rounds(members, tag), self._call, 0, None))

    def _rounds(self, members: Sequence[int], tag: int) -> Iterator[Messages]:
        """Rounds of a dissemination barrier of the ranks in ``members``."""
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
    call: Call | None = None, by_engine: bool = True, timeout: float | None = None,
) -> Iterator[Making]:  # fmt: skip
    """``with meeting("creating a communicator by Dup", comm, context) as making``: begins when all ranks have come.

    ``context`` is the library's side of ``comm``, if there is one; the method then counts as one of its calls.
    ``members`` are the ranks that take part, by default all; they synchronise by messages with ``tag``. ``call`` is
    what other ranks are told, by default only the name ``what``. ``by_engine``: the node-local engine may be used.
    ``timeout``, in seconds, is for a ``comm`` without a context; by default that of the environment.
    """
    ranks = [rank for rank in members or range(comm.size) if rank != comm.rank]
    by_engine = by_engine and context is not None and context.apart is None
    call = call or Call(None, what, "", 0, "", "", None)
    asking = context or Stranger(comm, timeout)
    asking.check()
    _watch_over_this_process()
    if context is not None and members is None:
        if not by_engine:  # the engine counts its calls itself
            made = call
            context.count_mpi(lambda: made)
        call = call._replace(number=context.begun + by_engine)
    making = Making(asking, comm if context is None else context.internal, call, ranks)
    if members is None:
        making.meet(by_engine)
    else:
        making.meet_some(members, tag)
    with making.begin():
        try:
            yield making
        except Exception:  # from MPI or an argument: all ranks raise it
            raise
        except BaseException as e:  # KeyboardInterrupt: the other ranks are in MPI's call
            asking.note(making.run(), e)
            raise
