"""Collectives of Python objects, made of collectives of bytes.

An object is sent as a pickle stream and, separately, the large buffers that it refers to (pickle protocol 5, PEP 574).
The buffers go from the sender's memory to the receivers' memory without a copy in between. ``objects.pxi`` exchanges
the streams and their lengths; this module exchanges the buffers and folds objects.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..core import _core, interfaces

__all__ = ["Objects", "fold", "folds_alike", "sendable"]

#: A reduction of objects that have more bytes together than this goes along a tree, so that no rank holds them all.
LONG = 1 << 26

Buffers = list[Any]


def _bytes(buffer: Any) -> np.ndarray:
    """The bytes of a buffer as a uint8 array, without a copy."""
    return np.frombuffer(buffer, np.uint8) if len(buffer) else np.empty(0, np.uint8)


def _ith(buffers: Buffers, i: int) -> np.ndarray:
    """The i-th buffer as a uint8 array; an empty array beyond the last."""
    return _bytes(buffers[i] if i < len(buffers) else b"")


def _sizes(streams: Sequence[Any], counts: Sequence[int], i: int) -> list[int]:
    """Length in bytes of the i-th buffer of each stream's object, 0 if it has fewer; ``counts`` are their numbers."""
    return [_core.sizes_in(stream, n)[i] if i < n else 0 for stream, n in zip(streams, counts, strict=True)]


def _blocks(data: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    """Consecutive parts of ``data``, of lengths ``sizes``, each with memory of its own.

    They are copied from the last one on, and ``data`` shrinks meanwhile, so that it is never there twice.
    """
    parts, end = [], len(data)
    for size in reversed(sizes):
        begin = end - size
        parts.append(data[begin:end].copy() if begin else data[:end])
        if begin:
            with contextlib.suppress(ValueError):  # another thread looks at the call that has received it
                data.resize(begin, refcheck=False)
        end = begin
    return parts[::-1]


def _joined(parts: Sequence[Any]) -> list[Any]:
    """The parts concatenated, and their lengths in bytes: a buffer with counts."""
    return [np.concatenate([_bytes(part) for part in parts]), [len(part) for part in parts]]


def fold(op: Any, objects: Sequence[Any]) -> Any:
    """Fold objects by ``op(left, right)`` from the left, in rank order."""
    return functools.reduce(op, objects)


def folds_alike(op: Any) -> bool:
    """Whether every rank that folds equal objects by ``op`` gets the same: a function may use a set, or the time."""
    return isinstance(op, MPI.Op) and op.is_predefined


def sendable(error: Exception) -> Exception:
    """``error``, or a RuntimeError with its text if it cannot be pickled."""
    try:
        MPI.pickle.loads(MPI.pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class Objects:
    """The lower-case methods of :class:`collectives.Communicator`, which derives from this class."""

    rank: int
    size: int
    _context: Any

    if TYPE_CHECKING:  # the communicator has these
        Barrier: Any
        Ibarrier: Any
        Split: Any
        Bcast: Any
        Gatherv: Any
        Scatterv: Any
        Allgatherv: Any
        Alltoallv: Any
        _enter: Any
        _refuse_in_group: Any
        _refuse_if_freed: Any

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.Barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """The root's ``obj`` on all ranks, as copies; on the root a None, number or string is ``obj`` itself."""
        return _core.bcast_object(self, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """The objects of all ranks, in rank order, on the root; None elsewhere."""
        return _core.gather_objects(self, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """The objects of all ranks, in rank order, on all ranks."""
        return _core.gather_objects(self, sendobj)

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """On rank i the i-th object of the root's sequence ``sendobj``; ValueError unless it has one for each rank."""
        return _core.scatter_object(self, sendobj, root)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send the i-th object of ``sendobj`` to rank i; return the objects received from all ranks, in rank order.

        ValueError unless ``sendobj`` has one object for each rank.
        """
        return _core.alltoall_objects(self, sendobj)

    def reduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM, root: int = 0) -> Any:
        """The objects of all ranks, folded by ``op(left, right)`` in rank order, on the root; None elsewhere.

        The fold begins at rank 0: ``op(op(a, b), c)``. If the objects have more than 64 MiB together, they are folded
        in pairs instead, ``op(op(a, b), op(c, d))``, on the ranks of a binomial tree, each of which holds two at once.
        """
        return _core.reduce_objects(self, sendobj, op, root, False, LONG, sendable)

    def allreduce(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of all ranks, folded by ``op(left, right)`` as by :meth:`reduce`, on all ranks.

        By a predefined MPI.Op every rank folds, unless the objects are folded along the tree. By another op rank 0
        folds, and all ranks get copies of its result, or the op's error.
        """
        return _core.reduce_objects(self, sendobj, op, None, not folds_alike(op), LONG, sendable)

    def scan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of the ranks up to this one, folded by ``op(left, right)`` in rank order."""
        self._refuse_if_freed()
        return fold(op, _core.gather_objects(self, sendobj, None, self.rank + 1))

    def exscan(self, sendobj: Any, op: MPI.Op | Callable[[Any, Any], Any] = MPI.SUM) -> Any:
        """The objects of the ranks before this one, folded by ``op(left, right)`` in rank order; None on rank 0."""
        self._refuse_if_freed()
        before = _core.gather_objects(self, sendobj, None, self.rank)
        return fold(op, before) if before else None


class Exchange:
    """What a call with objects needs of its communicator beside frames, for ``objects.pxi``; made for one call."""

    def __init__(self, comm: Objects):
        self._comm = comm

    def enter(self) -> Any:
        """The library's side of the communicator, if it can be used now."""
        self._comm._refuse_in_group("a call with objects")
        return self._comm._enter()

    def part(self) -> Objects:
        """The communicator; its next call counts as a part of the call under way."""
        self._comm._context.turn.part()
        return self._comm

    def bcast(self, buffers: Buffers, root: int) -> Buffers:
        """Broadcast buffers; ``buffers`` are the buffers on the root, and their lengths elsewhere."""
        found = []
        for buffer in buffers:
            found.append(_bytes(buffer) if self._comm.rank == root else np.empty(buffer, np.uint8))
            self.part().Bcast(found[-1], root)
        return found

    def gather(
        self, streams: list[Any] | None, counts: list[int], mine: Buffers, most: int, root: int | None
    ) -> list[Buffers]:
        """The buffers of all ranks' objects, on the root, or on all ranks if ``root`` is None.

        ``streams`` are the pickle streams, ``counts`` the numbers of buffers by rank, ``most`` the largest of these.
        """
        here = root is None or root == self._comm.rank
        buffers: list[Buffers] = [[] for _ in counts]
        for i in range(most):
            sizes = _sizes(streams, counts, i) if here and streams else []
            for rank, data in enumerate(self._collect(_ith(mine, i), sizes, root)):
                if i < counts[rank]:
                    buffers[rank].append(data)
        return buffers

    def _collect(self, mine: np.ndarray, sizes: list[int], root: int | None) -> list[np.ndarray]:
        """Gather ``mine`` of all ranks on the root, or on all ranks for None; ``sizes`` are the lengths by rank."""
        if root is not None and root != self._comm.rank:
            self.part().Gatherv(mine, None, root)
            return []
        data = np.empty(sum(sizes), np.uint8)
        if root is None:
            self.part().Allgatherv(mine, [data, sizes])
        else:
            self.part().Gatherv(mine, [data, sizes], root)
        return _blocks(data, sizes)

    def scatter(self, stream: Any, count: int, parts: list[Buffers] | None, most: int, root: int) -> Buffers:
        """The buffers of this rank's object, whose pickle is ``stream``; on the root, ``parts`` has all ranks'."""
        sizes, buffers = _core.sizes_in(stream, count), []
        for i in range(most):
            size = sizes[i] if i < count else 0
            data = self.deal([_ith(part, i) for part in parts] if parts else None, size, root)
            if i < count:
                buffers.append(data)
        return buffers

    def deal(self, parts: list[Any] | None, size: int, root: int) -> np.ndarray:
        """Scatter the root's ``parts``; returns this rank's, of ``size`` bytes."""
        data = np.empty(size, np.uint8)
        self.part().Scatterv(_joined(parts) if parts else None, data, root)
        return data

    def alltoall(self, streams: list[Any], counts: list[int], parts: list[Buffers], most: int) -> list[Buffers]:
        """The buffers of the received objects, by rank; ``parts`` are those of this rank's objects, by receiver."""
        buffers: list[Buffers] = [[] for _ in counts]
        for i in range(most):
            sizes = _sizes(streams, counts, i)
            for rank, data in enumerate(self.swap([_ith(part, i) for part in parts], sizes)):
                if i < counts[rank]:
                    buffers[rank].append(data)
        return buffers

    def swap(self, parts: list[Any], sizes: list[int]) -> list[np.ndarray]:
        """All-to-all: send ``parts``, one to each rank; return those received, of lengths ``sizes``."""
        data = np.empty(sum(sizes), np.uint8)
        self.part().Alltoallv(_joined(parts), [data, sizes])
        return _blocks(data, sizes)


def _as_the_core_asks(made: Exchange) -> interfaces.Exchange:
    """For type checkers: that the class implements the protocol in :mod:`collectives.core.interfaces`."""
    return made


_core.install_objects(Exchange)
