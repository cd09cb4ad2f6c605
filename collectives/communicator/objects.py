"""Collectives of Python objects, over those of bytes.

An object travels as a pickle stream and, beside it, the large buffers it refers to (pickle protocol 5, PEP 574): those
go from the memory of the sender to the memory of the receivers without a copy in between. The streams, and what is
said of their lengths, are exchanged by ``objects.pxi``; what is here are the buffers, and what folds objects.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..core import _core

__all__ = ["Objects"]

Buffers = list[Any]


def _bytes(buffer: Any) -> np.ndarray:
    """What a buffer holds, without a copy."""
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def _ith(buffers: Buffers, i: int) -> np.ndarray:
    """The i-th buffer; empty beyond the last."""
    return _bytes(buffers[i] if i < len(buffers) else b"")


def _sizes(streams: Sequence[Any], counts: Sequence[int], i: int) -> list[int]:
    """Bytes of the i-th buffer beside each stream."""
    return [_core.sizes_in(stream, n)[i] if i < n else 0 for stream, n in zip(streams, counts, strict=True)]


def _blocks(data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """The parts of one run of bytes; those that do not begin where any type may are copied."""
    ends = list(itertools.accumulate(sizes, initial=0))
    return [data[a:b].copy() if a % 16 else data[a:b] for a, b in itertools.pairwise(ends)]


def _joined(parts: Sequence[Any]) -> list[Any]:
    """Parts as one run of bytes with their lengths."""
    return [np.concatenate([_bytes(part) for part in parts]), [len(part) for part in parts]]


def _fold(op: Any, objects: Sequence[Any]) -> Any:
    """From the left, in rank order."""
    return functools.reduce(op, objects)


class Objects:
    """The lower-case methods of :class:`collectives.Communicator`; mixed into it."""

    rank: int
    size: int
    _context: Any

    if TYPE_CHECKING:  # the communicator has these
        Barrier: Any
        Bcast: Any
        Gatherv: Any
        Scatterv: Any
        Allgatherv: Any
        Alltoallv: Any
        _enter: Any
        _refuse_in_group: Any

    def barrier(self) -> None:
        """As :meth:`Barrier`."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's object on all ranks; on the root the very same."""
        return _core.bcast_object(self, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """The objects of all ranks, in rank order, on the root; None elsewhere."""
        return _core.gather_objects(self, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks, in rank order, on all ranks."""
        return _core.gather_objects(self, sendobj)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """One of the root's objects, one for each rank."""
        return _core.scatter_object(self, sendobj, root)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """An object from every rank, for one to every rank."""
        return _core.alltoall_objects(self, sendobj)

    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """The objects of all ranks, folded by ``op(left, right)`` in rank order, on the root; None elsewhere."""
        objects = _core.gather_objects(self, sendobj, root)
        return None if objects is None else _fold(op, objects)

    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of all ranks, folded by ``op(left, right)`` in rank order, on all ranks."""
        return _fold(op, _core.gather_objects(self, sendobj))

    def scan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of the ranks up to this one, folded by ``op(left, right)`` in rank order."""
        return _fold(op, _core.gather_objects(self, sendobj, None, self.rank + 1))

    def exscan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of the ranks before this one, folded by ``op(left, right)`` in rank order; None on rank 0."""
        before = _core.gather_objects(self, sendobj, None, self.rank)
        return _fold(op, before) if before else None

    # Called by objects.pxi

    def _enter_with_objects(self) -> Any:
        """The library's side of the communicator, if it can be used now."""
        self._refuse_in_group("a call with objects")
        return self._enter()

    def _part(self) -> Objects:
        """This communicator, whose next call is a part of the one under way."""
        self._context.turn.part()
        return self

    def _bcast_buffers(self, buffers: Buffers, root: int) -> Buffers:
        """Buffers at the root, their sizes elsewhere; returned is what they hold."""
        found = []
        for buffer in buffers:
            found.append(_bytes(buffer) if self.rank == root else np.empty(buffer, np.uint8))
            self._part().Bcast(found[-1], root)
        return found

    def _gather_buffers(
        self, streams: list[Any] | None, counts: list[int], mine: Buffers, most: int, root: int | None
    ) -> list[Buffers]:
        """The buffers beside these streams, on the root or on all ranks; ``most``: rounds of them."""
        here = root is None or root == self.rank
        buffers: list[Buffers] = [[] for _ in counts]
        for i in range(most):
            sizes = _sizes(streams, counts, i) if here and streams else []
            for rank, data in enumerate(self._collect(_ith(mine, i), sizes, root)):
                if i < counts[rank]:
                    buffers[rank].append(data)
        return buffers

    def _collect(self, mine: np.ndarray, sizes: list[int], root: int | None) -> list[np.ndarray]:
        """Bytes of all ranks, of known sizes where they arrive; nothing elsewhere."""
        if root is not None and root != self.rank:
            self._part().Gatherv(mine, None, root)
            return []
        data = np.empty(sum(sizes), np.uint8)
        if root is None:
            self._part().Allgatherv(mine, [data, sizes])
        else:
            self._part().Gatherv(mine, [data, sizes], root)
        return _blocks(data, sizes)

    def _scatter_buffers(self, stream: Any, count: int, parts: list[Buffers] | None, most: int, root: int) -> Buffers:
        """The buffers beside this stream; at the root ``parts`` are those of all ranks' objects."""
        sizes, buffers = _core.sizes_in(stream, count), []
        for i in range(most):
            size = sizes[i] if i < count else 0
            data = self._deal([_ith(part, i) for part in parts] if parts else None, size, root)
            if i < count:
                buffers.append(data)
        return buffers

    def _deal(self, parts: list[Any] | None, size: int, root: int) -> np.ndarray:
        """The root's bytes for this rank."""
        data = np.empty(size, np.uint8)
        self._part().Scatterv(_joined(parts) if parts else None, data, root)
        return data

    def _swap_buffers(self, streams: list[Any], counts: list[int], parts: list[Buffers], most: int) -> list[Buffers]:
        """The buffers beside these streams; ``parts`` are those of the own objects, for all ranks."""
        buffers: list[Buffers] = [[] for _ in counts]
        for i in range(most):
            sizes = _sizes(streams, counts, i)
            for rank, data in enumerate(self._swap([_ith(part, i) for part in parts], sizes)):
                if i < counts[rank]:
                    buffers[rank].append(data)
        return buffers

    def _swap(self, parts: list[Any], sizes: list[int]) -> list[np.ndarray]:
        """Bytes from all ranks, for some to all ranks."""
        data = np.empty(sum(sizes), np.uint8)
        self._part().Alltoallv(_joined(parts), [data, sizes])
        return _blocks(data, sizes)
