"""Scattered memory as one run of bytes: elements with gaps, blocks that do not follow each other.

The packed form of a datatype is its data in the order of the type map, which is what MPI_Pack gives among like
machines; so ranks may describe the same message by different datatypes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from ..core import _core
from .buffers import Buffer
from .datatypes import Type

__all__ = ["Packed", "contiguous", "region"]


def region(address: int, nbytes: int) -> np.ndarray:
    """Memory at an address as an array of bytes; it must outlive the array."""
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, np.uint8)


class Packed:
    """A temporary that stands for a buffer, and how to fill it from there and to spill it there."""

    def __init__(self, buffer: Buffer):
        self._pieces: list[tuple[int, int, int, MPI.Datatype | None]] = []  # address, span, bytes of data, its type
        self.owner = buffer.owner
        for address, count in buffer.pieces():
            nbytes = count * buffer.type.size
            if buffer.type.dense or nbytes == 0:
                self._pieces.append((address, nbytes, nbytes, None))
            else:
                whole, low, span = _as_one(buffer.type, count)
                self._pieces.append((address + low, span, nbytes, whole))
        self.bytes = np.empty(max(1, buffer.nbytes), np.uint8)

    def __del__(self) -> None:
        if not MPI.Is_finalized():
            for *_, datatype in self._pieces:
                if datatype is not None:
                    datatype.Free()

    @property
    def address(self) -> int:
        """Where the temporary is."""
        return _core.address(self.bytes)

    def load(self) -> None:
        """Copy from the buffer; ValueError where MPI cannot."""
        for memory, temporary, datatype in self._runs():
            if datatype is None:
                temporary[:] = region(memory.address, memory.nbytes)
                continue
            try:
                datatype.Pack(memory, temporary, 0, MPI.COMM_SELF)
            except MPI.Exception as e:
                raise ValueError(f"{temporary.nbytes} bytes of a derived datatype cannot be packed: {e}") from None

    def store(self) -> None:
        """Copy to the buffer."""
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
    """A datatype for all of ``count`` elements, from their first byte of data on; that byte's place, and its extent.

    It lives on when the program frees its own datatype, and mpi4py, which counts by extents, packs one of it.
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
    """The address of a buffer's data as one run of bytes, in place or, where it is scattered, of a temporary."""
    if buffer.type.dense:
        pieces = buffer.pieces()
        if not pieces:
            return buffer.address, None
        if len(pieces) == 1:
            return pieces[0][0], None
    packed = Packed(buffer)
    return packed.address, packed
