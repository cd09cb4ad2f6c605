"""Point-to-point messages: by MPI if the group uses MPI, else by Gloo, whose ranks meet over the group's store."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from ..arguments.signature import Call
from ..errors import CollectiveError, CollectiveMismatch
from ..runtime.context import Context
from ..waiting.watching import Watch
from .store import Exchange
from .tensors import Inward, Outward
from .work import Dropped, Job

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["MPIMessages", "StoreMessages"]

LONGEST_NAP = 1e-3  # seconds between looks at a message by a thread that is not the program's


class MPIMessages:
    """Messages over a communicator."""

    def __init__(self, comm: Communicator, context: Any):
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._comm = comm
        self._context = context
        self._unmatched = _Queue()
        self._last_tag: int = comm.Get_attr(self._mpi.TAG_UB)  # type: ignore[assignment]

    def _check(self, tag: int) -> None:
        self._context.check()
        if not 0 <= tag <= self._last_tag:
            raise ValueError(f"tag: {tag} is not between 0 and {self._last_tag}, the last of this MPI's")
        MPIMessage.dropped.look()

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        self._check(tag)
        source, nbytes = Inward([tensor], "tensor"), tensor.numel() * tensor.element_size()
        memory = self._mpi.memory.fromaddress(source.address, nbytes)
        request = self._comm.Isend([memory, self._mpi.BYTE], peer, tag)
        return MPIMessage(self._context, request, f"send to rank {peer}", peer, source.owner, [tensor])

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""
        self._check(tag)
        target, nbytes = Outward([tensor], "tensor"), tensor.numel() * tensor.element_size()
        memory = self._mpi.memory.fromaddress(target.address, nbytes)
        source = self._mpi.ANY_SOURCE if peer is None else peer
        if peer is not None:
            self._unmatched.match()
        several_hosts = self._context.mpi_queries is not None
        if several_hosts and (peer is None or self._unmatched.waits_for(tag)):
            request: Any = _Unmatched(self._mpi, self._comm, [memory, self._mpi.BYTE], source, tag, self._unmatched)
        else:
            request = self._comm.Irecv([memory, self._mpi.BYTE], source, tag)
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        return MPIMessage(self._context, request, words, peer, target.owner, [tensor], target)


class _Queue:
    """Receives from any rank that have no message yet, and those with the same tag that were begun after them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may test a receive within a test
        self.receives: list[_Unmatched] = []
        self._matching = False

    def waits_for(self, tag: int) -> bool:
        """Whether a receive from any rank waits for a message with this tag, which is then the first to get one."""
        with self.lock:
            return any(receive.tag == tag for receive in self.receives)

    def match(self) -> None:
        """Find messages for the receives. Of receives with one tag, the first gets the first message."""
        if not self.receives:
            return
        with self.lock:
            if self._matching:  # what a signal handler interrupts goes on after it
                return
            self._matching = True
            try:
                tags: set[int] = set()
                for receive in list(self.receives):
                    if receive.tag not in tags and receive.match():
                        self.receives.remove(receive)
                    else:
                        tags.add(receive.tag)
            finally:
                self._matching = False


class _Unmatched:
    """A receive in a `_Queue`, with the methods of a request. It looks for its message when it is tested.

    One from a given rank becomes a receive of MPI's when none from any rank is before it. If messages come by shared
    memory and by a network, MPICH 5.0.2 loses some of those that an ``Irecv`` from any rank could take in both ways.
    """

    def __init__(self, mpi: Any, comm: Communicator, buffer: list[Any], source: int, tag: int, queue: _Queue):
        self._any, self._comm, self._buffer, self._queue = mpi.ANY_SOURCE, comm, buffer, queue
        self._source, self.tag = source, tag
        self._request: Any = None
        self._none = mpi.REQUEST_NULL
        with queue.lock:
            queue.receives.append(self)

    def Cancel(self) -> None:
        """As ``Cancel`` of a request."""
        with self._queue.lock:
            if self._request is None:
                self._queue.receives.remove(self)
                self._request = self._none
                return
        self._request.Cancel()

    def match(self) -> bool:
        """Begin to receive a message, if there is one for a receive from any rank; whether that was done."""
        if self._source != self._any:
            self._request = self._comm.Irecv(self._buffer, self._source, self.tag)
            return True
        found = self._comm.Improbe(self._any, self.tag)
        if found is not None:
            self._request = found.Irecv(self._buffer)
        return found is not None

    def Test(self, status: Any) -> bool:
        """As ``Test`` of a request."""
        if self._request is None:
            self._queue.match()
        return self._request is not None and self._request.Test(status)


class Message(Job):
    """A message under way, with the attributes by which waits describe it, like those of a run of a collective."""

    def __init__(
        self, context: Any, words: str, peer: int | None, owner: Any, results: list[torch.Tensor],
        target: Outward | None = None,
    ):  # fmt: skip
        super().__init__(results)
        self._context, self._words, self._peer, self._target = context, words, peer, target
        self._lock = threading.RLock()  # several threads may wait; a signal handler may test within a test
        self._ended = False
        self._bytes = sum(tensor.numel() * tensor.element_size() for tensor in results)
        self.buffers = owner
        self.plan = self  # waits ask plan.waiting() for the ranks that are waited for

    def __str__(self) -> str:
        return f"{self._words} ({self._bytes} bytes)"

    def call(self) -> Call:
        """The message as a Call, for reports of what this rank does."""
        return Call(None, self._words, "message", self._bytes, "", "", None)

    def waiting(self) -> list[int]:
        """The rank that this message waits for; none if any rank will do."""
        return [] if self._peer is None else [self._peer]

    def withdraw(self) -> int:
        """Take the message back if possible; returns the number of messages that still come."""
        return 0

    def _finish(self) -> None:
        """Do what must be done when the message has come; the caller has the lock, and does this once."""
        if self._target is not None:
            for end in self._target.ends:
                end()
        self._ended = True


class MPIMessage(Message):
    """A message of MPI under way. A wait for it looks at the other ranks as a wait for a collective does.

    If the program drops it before it is complete, it is kept, since MPI may still read or write its memory.
    """

    dropped: ClassVar[Dropped] = Dropped()

    def __init__(self, context: Any, request: Any, *about: Any):
        super().__init__(context, *about)
        self._request = request
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._status = self._mpi.Status()
        self._withdrawn = False
        self._error: BaseException | None = None  # MPI's, for every thread that waits

    def __del__(self) -> None:
        super().__del__()
        if not self._ended:
            self.dropped.add(self)

    def is_over(self) -> bool:
        """Whether MPI will not use the memory any more. What was taken back may still come, and is never over."""
        with self._lock, contextlib.suppress(self._mpi.Exception):
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
                self._ended = self._request.Test(self._status)
                return not self._ended
            except self._mpi.Exception:  # MPI itself has ended the request, with an error: the other rank died
                return 0

    def _test(self) -> bool:
        """Whether the message has been received or sent; raises MPI's error. MPI lets one thread test at a time."""
        with self._lock:
            if self._withdrawn:
                self._context.check()
            if self._error is not None:
                raise self._error
            try:
                if not self._ended and self._request.Test(self._status):
                    self._finish()
            except self._mpi.Exception as e:
                self._error = e
                raise
            return self._ended

    def is_completed(self) -> bool:
        """Whether the message has been received or sent, or has failed: then the next wait raises the error."""
        try:
            return self._test()
        except (self._mpi.Exception, CollectiveError):
            return True

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

    def _wait(self, timeout: float | None) -> None:
        self._watched(_Looking(self, 0.0), timeout)

    def _wait_aside(self) -> None:
        self._watched(_Looking(self, LONGEST_NAP), None)

    def _watched(self, looking: _Looking, timeout: float | None) -> None:
        try:
            self._context.wait(self, timeout, looking)
        except self._mpi.Exception as e:
            if e.Get_error_class() == self._mpi.ERR_TRUNCATE:
                raise CollectiveMismatch(f"{self}: the message is longer than the tensor") from e
            self._context.fail(self, e)
        except BaseException as e:
            self._context.fail(self, e)

    def source_rank(self) -> int:
        """The rank that sent the message."""
        if self._target is None:
            return super().source_rank()
        return self._status.Get_source()


class _Looking:
    """Waits for a message by looking at it again and again."""

    def __init__(self, message: MPIMessage, nap: float):
        self._message, self._nap = message, nap

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Look for up to ``limit`` ns; whether the message has been received or sent."""
        return self._message._look(self._nap, limit * 1e-9)


class StoreMessages:
    """Messages by Gloo between processes of one node, which are connected when the group is made.

    If first messages made the connections, ranks would wait for each other in the call that begins a message.
    """

    def __init__(self, exchange: Exchange, context: Context):
        self._context = context
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = exchange.timeout
        store = dist.PrefixStore("messages", exchange.store)
        self._gloo = dist.ProcessGroupGloo(store, exchange.rank, exchange.size, options)

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        source = Inward([tensor], "tensor")
        self._context.check()
        memory = [_raw(source.flat if source.flat is not None else tensor)]
        message = StoreMessage(self._context, f"send to rank {peer}", peer, source.owner, [tensor])
        return message.begin(lambda: self._gloo.send(memory, peer, tag))

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive; from any rank if ``peer`` is None."""
        target = Outward([tensor], "tensor")
        memory = [_raw(target.flat if target.flat is not None else tensor)]
        self._context.check()
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        message = StoreMessage(self._context, words, peer, target.owner, [tensor], target)
        if peer is None:
            return message.begin(lambda: self._gloo.recv_anysource(memory, tag))
        return message.begin(lambda: self._gloo.recv(memory, peer, tag))


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor, since Gloo knows only some types. A single element counts as contiguous
    whatever its stride is."""
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class StoreMessage(Message):
    """A message of Gloo under way."""

    _work: dist.Work

    def begin(self, send: Callable[[], dist.Work]) -> StoreMessage:
        """Let Gloo send or receive the message. If Gloo does not begin it, the error is handled like that of a wait."""
        try:
            self._work = send()
        except RuntimeError as e:
            self._context.fail(self, e)
        return self

    def _wait(self, timeout: float | None) -> None:
        try:
            self._attend(self._context.timeout if timeout is None else timeout)
        except BaseException as e:
            self._context.fail(self, e)

    def _attend(self, limit: float | None) -> None:
        """Wait in one thread at a time, and in Gloo once: a second wait there would be for another message."""
        end = None if limit is None else time.monotonic() + limit
        if not self._lock.acquire(timeout=-1 if limit is None else limit):
            with contextlib.suppress(RuntimeError):  # a wait that is too late in Gloo ends those of other threads
                self._work.wait(timedelta(milliseconds=1))
            raise Watch(self._context, self).timed_out(limit or 0)
        try:
            if not self._ended:
                self._work.wait(timedelta(seconds=0 if end is None else max(1e-3, end - time.monotonic())))
                self._finish()
        except RuntimeError as e:
            if "imed out" in str(e):
                raise Watch(self._context, self).timed_out(limit or 0) from None
            raise
        finally:
            self._lock.release()

    def is_completed(self) -> bool:
        """Whether the message has been received or sent, or has failed. Gloo knows of that only from a wait."""
        if not self._work.is_completed():
            return False
        with self._lock:  # until the thread that waited has finished
            return True

    def source_rank(self) -> int:
        """The rank that sent the message."""
        return self._work._source_rank()
