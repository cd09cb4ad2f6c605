"""Scattered memory as one contiguous run of bytes, for elements with gaps and blocks that are not adjacent.

The packed form is the data in the order of the type map, as MPI_Pack gives it between machines of equal data
representation. Ranks may therefore describe the same message by different datatypes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from ..core import _core
from .buffers import Buffer
from .datatypes import Type

__all__ = ["Packed", "contiguous", "region"]

#: Most bytes that one call of MPI packs: some MPI libraries count them in 32 bits.
MOST_AT_ONCE = 1 << 30


def region(address: int, nbytes: int) -> np.ndarray:
    """The ``nbytes`` bytes at ``address`` as an array of uint8; the memory must outlive the array."""
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, np.uint8)


class Packed:
    """A temporary with the packed data of a buffer; it can be filled from the buffer and written back."""

    def __init__(self, pieces: Iterable[tuple[int, int, Type]], owner: Any):
        """``pieces``: address, number of elements and type of each run of elements; ``owner`` keeps them alive."""
        self._pieces: list[tuple[int, int, int, MPI.Datatype | None]] = []  # address, span, bytes of data, datatype
        pieces, self.owner = list(pieces), owner
        self.bytes = np.empty(max(1, sum(count * kind.size for _, count, kind in pieces)), np.uint8)
        for address, count, kind in pieces:
            nbytes = count * kind.size
            if kind.dense or nbytes == 0:
                self._pieces.append((address, nbytes, nbytes, None))
                continue
            step = max(1, MOST_AT_ONCE // kind.size)
            for first in range(0, count, step):
                some = min(step, count - first)
                whole, low, span = _as_one(kind, some)
                self._pieces.append((address + first * kind.extent + low, span, some * kind.size, whole))

    @classmethod
    def of(cls, buffer: Buffer) -> Packed:
        """A temporary with the data of ``buffer``."""
        return cls([(address, count, buffer.type) for address, count in buffer.pieces()], buffer.owner)

    def __del__(self) -> None:
        if not _core.ended():
            for *_, datatype in self._pieces:
                if datatype is not None:
                    datatype.Free()

    @property
    def address(self) -> int:
        """The address of the temporary."""
        return _core.address(self.bytes)

    def load(self) -> None:
        """Copy from the buffer to the temporary; ValueError if MPI cannot pack the datatype."""
        for memory, temporary, datatype in self._runs():
            if datatype is None:
                temporary[:] = region(memory.address, memory.nbytes)
                continue
            try:
                datatype.Pack(memory, temporary, 0, MPI.COMM_SELF)
            except MPI.Exception as e:
                raise ValueError(f"{temporary.nbytes} bytes of a derived datatype cannot be packed: {e}") from None

    def store(self) -> None:
        """Copy from the temporary to the buffer."""
        for memory, temporary, datatype in self._runs():
            if datatype is None:
                region(memory.address, memory.nbytes)[:] = temporary
            else:
                datatype.Unpack(temporary, 0, memory, MPI.COMM_SELF)

    def _runs(self) -> Iterator[tuple[Any, Any, MPI.Datatype | None]]:
        position = 0
        for address, span, nbytes, datatype in self._pieces:
            temporary = self.bytes[position : position + nbytes]
            position += nbytes
            if nbytes:
                yield MPI.buffer.fromaddress(address, span), temporary, datatype


def _as_one(kind: Type, count: int) -> tuple[MPI.Datatype, int, int]:
    """A datatype for all ``count`` elements that begins at their first byte of data; that byte's offset; the span.

    It outlives the program's datatype. mpi4py counts lengths by extents, so this datatype is packed once.
    """
    assert kind.named is not None
    try:
        many = kind.named.Create_hvector(count, 1, kind.extent)
    except MPI.Exception as e:
        raise ValueError(f"{count} elements of a derived datatype with gaps cannot be packed: {e}") from None
    low, span = many.Get_true_extent()
    shifted = many.Create_hindexed([1], [-low])
    whole = shifted.Create_resized(0, span).Commit()
    shifted.Free()
    many.Free()
    return whole, low, span


def contiguous(buffer: Buffer) -> tuple[int, Packed | None]:
    """The address of the buffer's data as one contiguous run: in place (with None), or of a temporary."""
    if buffer.type.dense:
        pieces = buffer.pieces()
        if not pieces:
            return buffer.address, None
        if len(pieces) == 1:
            return pieces[0][0], None
    packed = Packed.of(buffer)
    return packed.address, packed
