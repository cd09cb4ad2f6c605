"""``ThreadComm``: the methods of a communicator that training uses, for ranks that are threads of one process."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .buffers import Array, Blocks, blocks, flat, fold, in_place, is_any, name_of
from .job import Call, Group
from .request import Request


class ThreadComm:
    """A communicator of ranks that are threads, with mpi4py's interface as far as training uses it.

    The rank that comes last to a collective runs it for all: reductions are folds in rank order, with the bits that
    ranks of one node get from this library. Objects are copied (``copy.deepcopy``), messages too. Point-to-point calls
    do not wait for their receiver. ``algorithm`` may not be asked for; ``deterministic`` is always true. Status objects
    are not filled in. A rank that waits longer than ``timeout``, by default that of `run`, raises CollectiveTimeout,
    which names the ranks that have not come; if the function of a rank raised, the others raise PeerFailure, which
    names it.
    """

    deterministic = True

    def __init__(self, group: Group, rank: int) -> None:
        self._group, self.rank, self.size = group, rank, group.size
        self.timeout = group.job.timeout  # each rank may set its own
        self._number = 0

    def __repr__(self) -> str:
        return f"<ThreadComm rank {self.rank} of {self.size}>"

    def same_ranks(self, other: Any) -> bool:
        """Whether `other` is a communicator of the same ranks in the same order."""
        if not isinstance(other, ThreadComm):
            return False
        mine, theirs = self._group, other._group
        return mine.job is theirs.job and mine.members == theirs.members

    def Get_rank(self) -> int:
        """This rank's number."""
        return self.rank

    def Get_size(self) -> int:
        """The number of ranks."""
        return self.size

    def empty(self, shape: Any, dtype: Any = np.float64) -> Array:
        """An array, as ``numpy.empty``: all memory of a process is shared by its threads."""
        return np.empty(shape, dtype)

    def zeros(self, shape: Any, dtype: Any = np.float64) -> Array:
        """An array of zeros."""
        return np.zeros(shape, dtype)

    def full(self, shape: Any, value: Any, dtype: Any = None) -> Array:
        """An array of one value."""
        return np.full(shape, value, dtype)

    # Collectives of arrays, of which blocking ones wait for those without a wait.

    def Ibarrier(self) -> Request:
        """Begin a `Barrier`."""
        return self._begin("Barrier", None, lambda parts: None)

    def Ibcast(self, buf: Any, root: int = 0) -> Request:
        """Begin a `Bcast`."""
        mine = flat(buf, "buf", writable=self.rank != root)

        def execute(parts: list[Array]) -> None:
            for rank, part in enumerate(parts):
                if rank != root:
                    _copy(part, parts[root])

        return self._begin(f"Bcast of {_told(mine)} from {self._checked(root)}", mine, execute)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, **how: Any) -> Request:
        """Begin an `Allreduce`."""
        receive = flat(recvbuf, "recvbuf", writable=True)
        send = receive if in_place(sendbuf) else flat(sendbuf, "sendbuf")
        name = self._op(op, how)

        def execute(parts: list[tuple[Array, Array]]) -> None:
            total = fold([given for given, _ in parts], name)
            for _, result in parts:
                _copy(result, total)

        return self._begin(f"Allreduce of {_told(send)}, {name}", (send, receive), execute)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0, **how: Any) -> Request:
        """Begin a `Reduce`."""
        receive = flat(recvbuf, "recvbuf", writable=True) if self.rank == root else None
        send = receive if receive is not None and in_place(sendbuf) else flat(sendbuf, "sendbuf")
        name = self._op(op, how)

        def execute(parts: list[tuple[Array, Array]]) -> None:
            _copy(parts[root][1], fold([given for given, _ in parts], name))

        return self._begin(f"Reduce of {_told(send)}, {name}, to {self._checked(root)}", (send, receive), execute)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = None, **how: Any
    ) -> Request:
        """Begin a `Reduce_scatter`."""
        receive = flat(recvbuf, "recvbuf", writable=True)
        send = receive if in_place(sendbuf) else flat(sendbuf, "sendbuf")
        counts = self.allgather(receive.size) if recvcounts is None else [int(n) for n in recvcounts]
        if len(counts) != self.size or sum(counts) > send.size or counts[self.rank] > receive.size:
            raise ValueError(f"recvcounts {counts} do not fit {send.size} elements sent, {receive.size} received")
        name = self._op(op, how)

        def execute(parts: list[tuple[Array, Array]]) -> None:
            total, start = fold([given for given, _ in parts], name), 0
            for (_, result), count in zip(parts, counts, strict=True):
                result[:count] = total[start : start + count]
                start += count

        return self._begin(f"Reduce_scatter of {_told(send)}, {counts}, {name}", (send, receive), execute)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None, **how: Any) -> Request:
        """Begin a `Reduce_scatter_block`."""
        counts = [flat(recvbuf, "recvbuf").size // (self.size if in_place(sendbuf) else 1)] * self.size
        return self.Ireduce_scatter(sendbuf, recvbuf, counts, op, **how)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any, **how: Any) -> Request:
        """Begin an `Allgatherv`."""
        receive = blocks(recvbuf, self.size, "recvbuf", writable=True)
        send = receive.block(self.rank) if in_place(sendbuf) else flat(sendbuf, "sendbuf")
        self._op(None, how)

        def execute(parts: list[tuple[Array, Blocks]]) -> None:
            given = [send.copy() for send, _ in parts]
            for _, result in parts:
                for rank, data in enumerate(given):
                    _copy(result.block(rank), data)

        return self._begin(f"Allgather of {send.dtype}", (send, receive), execute)

    Iallgather = Iallgatherv

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any, **how: Any) -> Request:
        """Begin an `Alltoallv`."""
        receive = blocks(recvbuf, self.size, "recvbuf", writable=True)
        send = receive if in_place(sendbuf) else blocks(sendbuf, self.size, "sendbuf")
        self._op(None, how)

        def execute(parts: list[tuple[Blocks, Blocks]]) -> None:
            given = [[send.block(rank).copy() for rank in range(self.size)] for send, _ in parts]
            for rank, (_, result) in enumerate(parts):
                for source, sent in enumerate(given):
                    _copy(result.block(source), sent[rank])

        return self._begin(f"Alltoall of {send.data.dtype}", (send, receive), execute)

    Ialltoall = Ialltoallv

    def Barrier(self) -> None:
        """Wait for all ranks."""
        self.Ibarrier().Wait()

    barrier = Barrier

    def Bcast(self, buf: Any, root: int = 0, **how: Any) -> None:
        """Copy the array of `root` into those of all ranks."""
        self._op(None, how)
        self.Ibcast(buf, root).Wait()

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, **how: Any) -> None:
        """Fold the ranks' arrays element by element; all ranks get the result. `op`: SUM by default."""
        self.Iallreduce(sendbuf, recvbuf, op, **how).Wait()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0, **how: Any) -> None:
        """As `Allreduce`; `root` gets the result."""
        self.Ireduce(sendbuf, recvbuf, op, root, **how).Wait()

    def Reduce_scatter(self, sendbuf: Any, recvbuf: Any, recvcounts: Any = None, op: Any = None, **how: Any) -> None:
        """As `Allreduce`; each rank gets its part of the result, of ``recvcounts[rank]`` elements."""
        self.Ireduce_scatter(sendbuf, recvbuf, recvcounts, op, **how).Wait()

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None, **how: Any) -> None:
        """As `Reduce_scatter`, with equal parts."""
        self.Ireduce_scatter_block(sendbuf, recvbuf, op, **how).Wait()

    def Allgatherv(self, sendbuf: Any, recvbuf: Any, **how: Any) -> None:
        """Gather the ranks' arrays on all ranks, as blocks of `recvbuf`."""
        self.Iallgatherv(sendbuf, recvbuf, **how).Wait()

    Allgather = Allgatherv

    def Alltoallv(self, sendbuf: Any, recvbuf: Any, **how: Any) -> None:
        """Send block r of `sendbuf` to rank r; block r of `recvbuf` comes from there."""
        self.Ialltoallv(sendbuf, recvbuf, **how).Wait()

    Alltoall = Alltoallv

    # Collectives of objects.

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks, by rank, as copies."""
        return self._exchange("allgather", sendobj, lambda given, rank: given)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """The objects of all ranks on `root`; None on others."""
        what = f"gather to {self._checked(root)}"
        return self._exchange(what, sendobj, lambda given, rank: given if rank == root else None)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The object of `root`."""
        return self._exchange(f"bcast from {self._checked(root)}", obj, lambda given, rank: given[root])

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """This rank's item of the sequence of `root`."""
        return self._exchange(f"scatter from {self._checked(root)}", sendobj, lambda given, rank: given[root][rank])

    def alltoall(self, sendobj: Any) -> list[Any]:
        """This rank's item of the sequences of all ranks."""
        return self._exchange("alltoall", sendobj, lambda given, rank: [items[rank] for items in given])

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        """The fold of the ranks' objects in rank order, by ``op(a, b)``; by default their sum."""
        combine = operator.add if op is None else op
        given = self.allgather(sendobj)
        total = given[0]
        for item in given[1:]:
            total = combine(total, item)
        return total

    # Messages.

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Send a copy of an array."""
        return self._send(flat(buf, "buf").copy(), dest, tag)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a copy of an array; does not wait for the receiver."""
        self.Isend(buf, dest, tag)

    def Irecv(self, buf: Any, source: Any = None, tag: Any = None) -> Request:
        """Begin a `Recv`."""
        mine = flat(buf, "buf", writable=True)
        return self._receive(source, tag, lambda call: _copy(mine, call.parts[0], shorter=True))

    def Recv(self, buf: Any, source: Any = None, tag: Any = None, status: Any = None) -> None:
        """Receive an array, no longer than `buf`, from a rank (default: any)."""
        self.Irecv(buf, source, tag).Wait()

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: Any = None, recvtag: Any = None
    ) -> None:
        """Send to one rank and receive from another."""
        self.Isend(sendbuf, dest, sendtag)
        self.Recv(recvbuf, source, recvtag)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Send a copy of an object."""
        return self._send(copy.deepcopy(obj), dest, tag)

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send a copy of an object."""
        self.isend(obj, dest, tag)

    def irecv(self, buf: Any = None, source: Any = None, tag: Any = None) -> Request:
        """Begin a `recv`; ``wait`` returns the object."""
        return self._receive(source, tag, lambda call: call.parts[0])

    def recv(self, buf: Any = None, source: Any = None, tag: Any = None, status: Any = None) -> Any:
        """Receive an object from a rank (default: any)."""
        return self.irecv(buf, source, tag).wait()

    # Other communicators.

    def Split(self, color: int | None = 0, key: int = 0) -> ThreadComm | None:
        """A communicator of the ranks with the same `color`, ordered by `key`; None for the color None."""
        told = self.allgather((color, key))
        shared = self._exchange_once("Split", lambda: {c: Group(self._group.job, []) for c, _ in told if c is not None})
        if color is None:
            return None
        order = sorted((k, rank) for rank, (c, k) in enumerate(told) if c == color)
        group = shared[color]
        with group.job.lock:
            group.members = [self._group.members[rank] for _, rank in order]
            group.size = len(order)
        return ThreadComm(group, order.index((key, self.rank)))

    def Split_type(self, split_type: Any = None, key: int = 0) -> ThreadComm:
        """A communicator of all ranks: they share one node."""
        made = self.Split(0, key)
        assert made is not None
        return made

    def Dup(self) -> ThreadComm:
        """A communicator of the same ranks."""
        return self.Split_type()

    def Free(self) -> None:
        """Do nothing: the communicator is freed with its last reference."""

    # What these are made of.

    def _request(self, call: Call, then: Callable[[Call], Any] = lambda call: None) -> Request:
        return Request(self._group, self.rank, call, lambda: self.timeout, then)

    def _begin(self, signature: str, part: Any, execute: Callable[[list[Any]], None]) -> Request:
        self._number += 1
        call = self._group.post(self.rank, self._number, signature.split()[0], signature, part, execute)
        return self._request(call)

    def _exchange(self, what: str, mine: Any, choose: Callable[[list[Any], int], Any]) -> Any:
        """Give an object; returns a copy of what ``choose(objects, rank)`` names."""
        box: list[Any] = []

        def execute(parts: list[tuple[Any, list[Any]]]) -> None:
            given = [item for item, _ in parts]
            for rank, (_, result) in enumerate(parts):
                result.append(copy.deepcopy(choose(given, rank)))

        self._begin(what, (mine, box), execute).Wait()
        return box[0]

    def _exchange_once(self, what: str, make: Callable[[], Any]) -> Any:
        """The result of ``make()`` of one rank: the same object on all ranks."""
        box: list[Any] = []

        def execute(parts: list[list[Any]]) -> None:
            made = make()
            for result in parts:
                result.append(made)

        self._begin(what, box, execute).Wait()
        return box[0]

    def _send(self, data: Any, dest: int, tag: int) -> Request:
        if not is_any(dest, "PROC_NULL"):
            self._group.send(self.rank, self._checked(dest), tag, data)
        done = Call("send", 0, self.size)
        done.done = True
        return self._request(done)

    def _receive(self, source: Any, tag: Any, then: Callable[[Call], Any]) -> Request:
        any_source, any_tag = is_any(source, "ANY_SOURCE"), is_any(tag, "ANY_TAG")
        if not any_source and is_any(source, "PROC_NULL"):
            done = Call("receive", 0, self.size)
            done.done = True
            return self._request(done)

        def fits(theirs: int, sent: int) -> bool:
            return (any_source or theirs == source) and (any_tag or sent == tag)

        call = self._group.receive(self.rank, None if any_source else self._checked(source), fits)
        return self._request(call, then)

    def _checked(self, rank: Any) -> int:
        if not 0 <= operator.index(rank) < self.size:
            raise ValueError(f"rank {rank} is not one of {self.size} ranks")
        return operator.index(rank)

    @staticmethod
    def _op(op: Any, how: dict[str, Any]) -> str:
        """The name of an op. Raises ValueError for a request of an algorithm, TypeError for unknown keywords."""
        unknown = set(how) - {"algorithm", "deterministic", "timeout"}
        if unknown:
            raise TypeError(f"unknown keywords {sorted(unknown)}")
        if how.get("algorithm") is not None:
            raise ValueError(f"algorithm {how['algorithm']!r}: ranks that are threads have none by name")
        return name_of(op)


def _told(array: Array) -> str:
    return f"{array.size} {array.dtype}"


def _copy(target: Array, source: Array, shorter: bool = False) -> None:
    """Copy elements of the same type, as bytes. ValueError unless their number fits."""
    if source.nbytes > target.nbytes or (source.nbytes < target.nbytes and not shorter):
        raise ValueError(f"{source.nbytes} bytes were sent, {target.nbytes} can be received")
    target.view(np.uint8)[: source.nbytes] = source.view(np.uint8)
