"""Point-to-point messages by MPI, and what messages without MPI share with them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from ..arguments.signature import Call
from ..errors import CollectiveMismatch
from ..waiting import ending
from .any_source import Receives, Unmatched, match_all
from .tensors import Inward, Outward
from .work import Callbacks, Dropped, Future, Job

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["MPIMessages", "Message"]

LARGEST = 2**31 - 1  # the largest count that every MPI library takes
UNIT = 1 << 20  # bytes in which longer messages are counted
NAP = 1e-3  # seconds between looks at a message by a thread that is not the program's
LONGEST_NAP = 5e-3  # and between later ones, since each takes the interpreter's lock


@functools.cache
def _long_type(mpi: Any, nbytes: int) -> Any:
    """A datatype of more bytes than a count can say. It is kept, since programs send the same lengths again."""
    many, rest = divmod(nbytes, UNIT)
    unit = mpi.BYTE.Create_contiguous(UNIT)
    made = mpi.BYTE.Create_struct([many, rest], [0, many * UNIT], [unit, mpi.BYTE]).Commit()
    unit.Free()
    return made


class MPIMessages:
    """Messages over a communicator."""

    def __init__(self, comm: Communicator, context: Any, callbacks: Callbacks | None):
        """``callbacks`` runs those of messages' futures."""
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._comm = comm
        self.context, self.callbacks = context, callbacks
        self._unmatched = Receives()
        self._last_tag: int = comm.Get_attr(self._mpi.TAG_UB)  # type: ignore[assignment]

    def _check(self, tag: int) -> None:
        self.context.check()
        if not 0 <= tag <= self._last_tag:
            raise ValueError(f"tag: {tag} is not between 0 and {self._last_tag}, the last of this MPI's")
        MPIMessage.dropped.look()

    def _buffer(self, address: int, nbytes: int) -> list[Any]:
        """The memory of a message as mpi4py takes it."""
        memory = self._mpi.memory.fromaddress(address, nbytes)
        return [memory, self._mpi.BYTE] if nbytes <= LARGEST else [memory, 1, _long_type(self._mpi, nbytes)]

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        self._check(tag)
        source = Inward([tensor], "tensor")
        request = self._comm.Isend(self._buffer(source.address, tensor.nbytes), peer, tag)
        return MPIMessage(self, request, peer, source.owner, [tensor])

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""
        self._check(tag)
        target = Outward([tensor], "tensor")
        buffer = self._buffer(target.address, tensor.nbytes)
        source = self._mpi.ANY_SOURCE if peer is None else peer
        if peer is not None:
            self._unmatched.match()
        several_hosts = self.context.mpi_queries is not None
        if several_hosts and (peer is None or self._unmatched.waits_for(tag)):
            request: Any = Unmatched(self._mpi, self._comm, buffer, source, tag, self._unmatched)
        else:
            request = self._comm.Irecv(buffer, source, tag)
        return MPIMessage(self, request, peer, target.owner, [tensor], target)


class Message(Job):
    """A message under way, with the attributes by which waits describe it, like those of a run of a collective.

    If the program drops it before it is complete, it is kept, since its memory may still be read or written.
    """

    dropped: ClassVar[Dropped] = Dropped()
    _error: BaseException | None = None  # what ended it, so that nothing uses its memory any more

    def __init__(
        self, messages: Any, peer: int | None, owner: Any, results: list[torch.Tensor], target: Outward | None = None
    ):  # fmt: skip
        """``messages`` are those of the group. ``target``, where a receive writes, is None for a send."""
        super().__init__(results)
        self._context, self._callbacks = messages.context, messages.callbacks
        self._words = f"send to rank {peer}" if target is None else f"receive from rank {peer}"
        if peer is None:
            self._words = "receive from any rank"
        self._peer, self._target = peer, target
        self._lock = threading.RLock()  # several threads may wait; a signal handler may test within a test
        self._ended = False
        self._bytes = sum(tensor.nbytes for tensor in results)
        self.buffers = owner
        self._polling: _Looking | None = None  # while the program polls

    def __del__(self) -> None:
        super().__del__()
        if not self._ended:
            self.dropped.add(self)

    def _shed(self) -> None:
        super()._shed()
        self._free_memory(self._ended or self._error is not None)

    def _free_memory(self, over: bool) -> None:
        """Let go of large tensors of a dropped message, if it is over."""
        if over and self._results is None:
            self.buffers = self._target = None

    def is_over(self) -> bool:
        """Whether nothing reads or writes the memory any more."""
        over = self._is_over()
        self._free_memory(over)
        return over

    def _is_over(self) -> bool:
        raise NotImplementedError

    def _new_future(self) -> torch.futures.Future:
        if self._callbacks is None or not self._context.background:
            return super()._new_future()
        return Future(self._callbacks)

    @property
    def plan(self) -> Message:
        """What waits ask for the ranks that are waited for. An attribute would keep tensors until Python finds the
        cycle."""
        return self

    def __str__(self) -> str:
        return f"{self._words} ({self._bytes} bytes)"

    def call(self) -> Call:
        """The message as a Call, for reports of what this rank does."""
        return Call(None, self._words, "message", self._bytes, "", "", None)

    def waiting(self) -> list[int]:
        """The rank that this message waits for. If any rank will do: none, or all others once these have ended."""
        if self._peer is not None:
            return [self._peer]
        others = list(self._context.others())
        return others if all(map(self._context.has_gone, others)) else []

    def withdraw(self) -> int:
        """Take the message back if possible; returns the number of messages that still come."""
        return 0

    def _look(self, nap: float, limit: float) -> bool:
        """Whether the message is received or sent within ``limit`` seconds; raises the error that has ended it."""
        raise NotImplementedError

    def _fails(self, error: BaseException) -> None:
        """Raise the ``error`` of a wait or a look as the program is to see it; return if the message has come."""
        raise NotImplementedError

    def _wait(self, timeout: float | None) -> None:
        self._watched(self._polling or _Looking(self, 0.0), timeout)
        self._polling = None

    def _wait_aside(self) -> None:
        self._watched(_Looking(self, NAP), None)

    def _watched(self, looking: _Looking, timeout: float | None) -> None:
        ending.refuse_if_forked()
        try:
            self._context.wait(self, timeout, looking)
        except BaseException as e:
            self._fails(e)

    def is_completed(self) -> bool:
        """Whether the message has been received or sent, or has failed: then the next wait raises the error.

        If not, looks at the other ranks as a wait does, unless a thread waits.
        """
        if self._failure is None:
            try:
                return self._poll()
            except Exception as e:
                self._has_failed(e)
        return True

    def _poll(self) -> bool:
        ending.refuse_if_forked()
        ended = True
        try:
            ended = self._look(0.0, 0.0)
            if not ended and all(wait.run is not self for wait in self._context.listed()):
                self._polling = self._polling or _Looking(self, 0.0)
                self._context.glance(self, self._polling)
        except Exception as e:
            ended = True
            self._fails(e)
        finally:
            if ended and self._polling is not None:
                self._context.end_glances(self._polling)
                self._polling = None
        return ended

    def _is_completed_soon(self) -> bool:
        try:
            return self._look(0.0, 0.0)
        except Exception:  # the next wait raises it
            return True

    def _finish(self) -> None:
        """Do what must be done when the message has come; the caller has the lock, and does this once."""
        if self._target is not None:
            for end in self._target.ends:
                end()
        self._ended = True


class MPIMessage(Message):
    """A message of MPI under way. A wait for it looks at the other ranks as a wait for a collective does."""

    def __init__(self, messages: MPIMessages, request: Any, *about: Any):
        super().__init__(messages, *about)
        self._request = request
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._statuses: list[Any] = []  # of the tests that may have completed the request
        self._withdrawn = False

    def _is_over(self) -> bool:
        """Whether MPI will not use the memory any more. What was taken back may still come, and is never over."""
        with self._lock, contextlib.suppress(self._mpi.Exception, CollectiveMismatch):
            if not self._withdrawn:
                self._test()
        return self._ended or self._error is not None

    def withdraw(self) -> int:
        """Take back a receive that no message has reached. A send cannot be taken back."""
        with self._lock:
            if self._target is None or self._ended or self._error is not None:
                return 0
            try:
                if not self._withdrawn:
                    self._withdrawn = True
                    self._request.Cancel()
                self._ended = self._request.Test(self._mpi.Status())
                return not self._ended
            except self._mpi.Exception:  # MPI itself has ended the request, with an error: the other rank died
                return 0

    def _test(self) -> bool:
        """Whether the message has been received or sent; raises MPI's error, and CollectiveMismatch if it is too
        short. MPI lets one thread test at a time."""
        match_all()
        with self._lock:
            if self._withdrawn:
                self._context.check()
            if self._error is not None:
                raise self._error
            try:
                if not self._ended and self._completes() and not self._ended:
                    self._check_length()
                    self._finish()
            except (self._mpi.Exception, CollectiveMismatch) as e:
                self._error = e
                raise
            return self._ended

    def _completes(self) -> bool:
        """Whether MPI has completed the request. It gives the status once, also if a signal's handler tests before or
        after it, within another test."""
        self._statuses.append(self._mpi.Status())
        if not self._request or self._request.Test(self._statuses[-1]):
            return True
        self._statuses.pop()
        return False

    @property
    def _status(self) -> Any:
        """The status of the completed request; others have MPI.ANY_SOURCE, which is negative, as their source."""
        return max(self._statuses, key=lambda status: status.Get_source())

    def _check_length(self) -> None:
        found = self._bytes if self._target is None else self._status.Get_elements(self._mpi.BYTE)
        if found != self._bytes:
            raise CollectiveMismatch(f"{self}: the message is shorter than the tensor, {found} bytes")

    def get_future(self) -> torch.futures.Future:
        """As of any Work. Below MPI.THREAD_MULTIPLE this waits until the message has been received or sent."""
        if not self._context.background:
            self.wait()
        return super().get_future()

    def _look(self, nap: float, limit: float) -> bool:
        end = time.monotonic() + limit
        while not self._test():
            if time.monotonic() >= end:
                return False
            if nap:
                time.sleep(nap)
            else:
                os.sched_yield()
        return True

    def _fails(self, error: BaseException) -> None:
        wrong = self._wrong_length(error)
        if wrong is not None:
            self._context.leave(self)
            raise wrong from None
        self._context.fail(self, error)

    def _wrong_length(self, error: BaseException) -> CollectiveMismatch | None:
        """The error of a message of another length than the tensor, after which the group goes on; None for others."""
        if isinstance(error, self._mpi.Exception) and error.Get_error_class() == self._mpi.ERR_TRUNCATE:
            return CollectiveMismatch(f"{self}: the message is longer than the tensor")
        return error if error is self._error and isinstance(error, CollectiveMismatch) else None

    def source_rank(self) -> int:
        """The rank that sent the message."""
        if self._target is None:
            return super().source_rank()
        return self._status.Get_source()


class _Looking:
    """Waits for a message by looking at it again and again."""

    def __init__(self, message: Message, nap: float):
        self._message, self._nap = message, nap

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Look for up to ``limit`` ns; whether the message has been received or sent."""
        nap, self._nap = self._nap, min(self._nap * 1.2, LONGEST_NAP)
        return self._message._look(nap, limit * 1e-9)
