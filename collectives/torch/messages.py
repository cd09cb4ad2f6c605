"""Point-to-point: by MPI where there is MPI, else by Gloo over the group's store, which connects those that ask."""

from __future__ import annotations

import importlib
import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..diagnosis import Call
from ..errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure
from ..plans import Plans
from .store import Exchange
from .tensors import Inward, Outward
from .work import Job, lateness

if TYPE_CHECKING:
    from ..communicator import Communicator

__all__ = ["MPIMessages", "StoreMessages"]

LONGEST_NAP = 1e-3  # seconds between looks at a message by a thread beside the program's


class MPIMessages:
    """Messages on a communicator."""

    def __init__(self, comm: Communicator):
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._comm = comm
        self._context = comm._enter()
        self._unmatched = _Queue()
        self._last_tag: int = comm.Get_attr(self._mpi.TAG_UB)  # type: ignore[assignment]

    def _check(self, tag: int) -> None:
        self._context.check()
        if not 0 <= tag <= self._last_tag:
            raise ValueError(f"tag: {tag} is not between 0 and {self._last_tag}, the last of this MPI's")

    def send(self, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        """Begin to send."""
        self._check(tag)
        source, nbytes = Inward([tensor], "tensor"), tensor.numel() * tensor.element_size()
        memory = self._mpi.memory.fromaddress(source.address, nbytes)
        request = self._comm.Isend([memory, self._mpi.BYTE], peer, tag)
        return MPIMessage(self._context, request, f"send to rank {peer}", peer, nbytes, source.owner, [tensor])

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive, from any rank where ``peer`` is None."""
        self._check(tag)
        target, nbytes = Outward([tensor], "tensor"), tensor.numel() * tensor.element_size()
        memory = self._mpi.memory.fromaddress(target.address, nbytes)
        if peer is None and self._context.letters is not None:
            request: Any = _Unmatched(self._mpi, self._comm, [memory, self._mpi.BYTE], tag, self._unmatched)
        else:
            self._unmatched.match()
            source = self._mpi.ANY_SOURCE if peer is None else peer
            request = self._comm.Irecv([memory, self._mpi.BYTE], source, tag)
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        return MPIMessage(self._context, request, words, peer, nbytes, target.owner, [tensor], target)


class _Queue:
    """Receives from any rank whose message has not come, in the order in which they were begun."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.receives: list[_Unmatched] = []

    def match(self) -> None:
        """Find messages for them; of one tag, the first gets the first."""
        if self.receives:
            with self.lock:
                tags: set[int] = set()
                for receive in list(self.receives):
                    if receive.tag not in tags and receive.match():
                        self.receives.remove(receive)
                    else:
                        tags.add(receive.tag)


class _Unmatched:
    """A receive from any rank, as a request, that looks for its message when it is tested.

    Where messages come by shared memory and by a network, MPICH 5.0.2 loses some that an ``Irecv`` from any rank could
    take either way.
    """

    def __init__(self, mpi: Any, comm: Communicator, buffer: list[Any], tag: int, queue: _Queue):
        self._any, self._comm, self._buffer, self.tag, self._queue = mpi.ANY_SOURCE, comm, buffer, tag, queue
        self._request: Any = None
        with queue.lock:
            queue.receives.append(self)

    def match(self) -> bool:
        """Whether there is a message, which it begins to receive."""
        found = self._comm.Improbe(self._any, self.tag)
        if found is not None:
            self._request = found.Irecv(self._buffer)
        return found is not None

    def Test(self, status: Any) -> bool:
        """As a request's."""
        if self._request is None:
            self._queue.match()
        return self._request is not None and self._request.Test(status)


class MPIMessage(Job):
    """A message of MPI's under way; a wait for it is watched as one for a collective is."""

    def __init__(
        self, context: Any, request: Any, words: str, peer: int | None, nbytes: int, owner: Any,
        results: list[torch.Tensor], target: Outward | None = None,
    ):  # fmt: skip
        super().__init__(results)
        self._context, self._request, self._words, self._peer = context, request, words, peer
        self._bytes, self._target = nbytes, target
        self.buffers = owner
        self.plan = self  # whose `waiting` says for whom
        self._mpi = importlib.import_module("mpi4py.MPI")
        self._status = self._mpi.Status()
        self._ended = False

    def __str__(self) -> str:
        return f"{self._words} ({self._bytes} bytes)"

    def call(self) -> Call:
        """What this rank does, in words."""
        return Call(None, self._words, "message", self._bytes, "", "", None)

    def waiting(self) -> list[int]:
        """The rank that has to come."""
        return [] if self._peer is None else [self._peer]

    def is_completed(self) -> bool:
        """Whether the message has come or gone."""
        if not self._ended and self._request.Test(self._status):
            self._ended = True
            if self._target is not None:
                for end in self._target.ends:
                    end()
        return self._ended

    def get_future(self) -> torch.futures.Future:
        """As of any Work; below MPI.THREAD_MULTIPLE the message has come or gone before it is given."""
        if not self._context.threaded:
            self.wait()
        return super().get_future()

    def _look(self, nap: float, limit: float) -> bool:
        end = time.monotonic() + limit
        while not self.is_completed():
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
            self._context.wait(self, looking, timeout)
        except self._mpi.Exception as e:
            if e.Get_error_class() == self._mpi.ERR_TRUNCATE:
                raise CollectiveMismatch(f"{self}: the message is longer than the tensor") from e
            self._context.fail(self, e)
        except BaseException as e:
            self._context.fail(self, e)

    def source_rank(self) -> int:
        """Whose message it was."""
        if self._target is None:
            return super().source_rank()
        return self._status.Get_source()


class _Looking:
    """A message that is looked at again and again."""

    def __init__(self, message: MPIMessage, nap: float):
        self._message, self._nap = message, nap

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Look for up to ``limit`` ns."""
        return self._message._look(self._nap, limit * 1e-9)


class StoreMessages:
    """Messages of Gloo's, between processes of one node, which are connected when the group is made.

    Connected by their first messages, ranks would wait for each other in the call that begins one.
    """

    def __init__(self, exchange: Exchange, context: Plans):
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
        work = self._gloo.send([_raw(source.flat if source.flat is not None else tensor)], peer, tag)
        return StoreMessage(self._context, work, f"send to rank {peer}", peer, [tensor], source.owner)

    def receive(self, tensor: torch.Tensor, peer: int | None, tag: int) -> dist.Work:
        """Begin to receive, from any rank where ``peer`` is None."""
        target = Outward([tensor], "tensor")
        memory = [_raw(target.flat if target.flat is not None else tensor)]
        self._context.check()
        work = self._gloo.recv_anysource(memory, tag) if peer is None else self._gloo.recv(memory, peer, tag)
        words = "receive from any rank" if peer is None else f"receive from rank {peer}"
        return StoreMessage(self._context, work, words, peer, [tensor], target.owner, target)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor: Gloo knows some types only."""
    return tensor.detach().reshape(-1).view(torch.uint8)


class StoreMessage(Job):
    """A message of Gloo's under way."""

    def __init__(
        self, context: Plans, work: dist.Work, words: str, peer: int | None, results: list[torch.Tensor], owner: Any,
        target: Outward | None = None,
    ):  # fmt: skip
        super().__init__(results)
        self._context, self._work, self._words, self._peer, self._target = context, work, words, peer, target
        self._owner = owner

    def _wait(self, timeout: float | None) -> None:
        limit = self._context.timeout if timeout is None else timeout
        try:
            self._work.wait(timedelta(seconds=limit or 0))
        except RuntimeError as e:
            raise self._blamed(str(e), limit) from e
        if self._target is not None:
            for end in self._target.ends:
                end()

    def _blamed(self, words: str, limit: float | None) -> CollectiveError:
        where = f"{self._words} on rank {self._context.rank} of {self._context.size}"
        dead = [rank for rank in self._context.others() if self._context.has_ended(rank)]
        if dead and (self._peer is None or self._peer in dead):
            return PeerFailure(f"{where}: rank {', '.join(map(str, dead))} died")
        if "imed out" in words:
            return CollectiveTimeout(f"{where}: {lateness(limit or 0)}")
        return CollectiveError(f"{where}: {words}")

    def is_completed(self) -> bool:
        """Whether the message has come or gone; a receive into scattered memory needs a wait all the same."""
        return self._work.is_completed()

    def source_rank(self) -> int:
        """Whose message it was."""
        return self._work._source_rank()
