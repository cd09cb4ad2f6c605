"""Turns what mpi4py accepts as a buffer into an address, a count and a type."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from ..core import _core
from .datatypes import Type, of_mpi
from .memory import memory_of

__all__ = [
    "AVG", "REPRODUCIBLE_SUM", "Average", "Buffer", "ReproducibleSum", "addressed", "checked_in_place", "in_place",
    "op_code", "parse", "parts", "refuse_overlap", "refuse_repeats", "room_before", "within",
]  # fmt: skip

_OP_CODES = {name: code for code, name in enumerate(_core.OPS)}


class Average:
    """``collectives.AVG``: the sum over the ranks, divided by their number; for floating and complex types."""

    def __repr__(self) -> str:
        return "collectives.AVG"

    def __reduce__(self) -> str:
        return "AVG"


class ReproducibleSum:
    """``collectives.REPRODUCIBLE_SUM``: the exact sum over the ranks, rounded once; for float32 and float64.

    The bits of the result do not depend on order, number of ranks, algorithm or alignment (docs/reproducibility.md).
    """

    def __repr__(self) -> str:
        return "collectives.REPRODUCIBLE_SUM"

    def __reduce__(self) -> str:
        return "REPRODUCIBLE_SUM"


#: The sum over the ranks divided by their number, as the op of a reduction; for floating and complex types.
AVG = Average()
#: The exact sum over the ranks, rounded once, as the op of a reduction; for float32 and float64.
REPRODUCIBLE_SUM = ReproducibleSum()
#: Ops that only this library has, with the names of their kernels.
_OWN_OPS = {AVG: "avg", REPRODUCIBLE_SUM: "reproducible_sum"}

_KERNEL_OPS = {
    op.handle: _OP_CODES[name]
    for name, op in {
        "sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX, "land": MPI.LAND, "lor": MPI.LOR,
        "lxor": MPI.LXOR, "band": MPI.BAND, "bor": MPI.BOR, "bxor": MPI.BXOR, "minloc": MPI.MINLOC,
        "maxloc": MPI.MAXLOC,
    }.items()
}  # fmt: skip


@dataclass(slots=True)
class Buffer:
    """Memory of a call: ``count`` elements of ``type`` at ``address`` for each of ``blocks`` blocks.

    In the vector forms every block has its own count and displacement (in extents of the type), in ``counts`` and
    ``displs``; ``count`` is then the sum of the counts.
    """

    address: int
    count: int
    type: Type
    owner: Any
    blocks: int = 1
    counts: tuple[int, ...] | None = None
    displs: tuple[int, ...] | None = None

    @property
    def elements(self) -> int:
        """Number of elements of all blocks together."""
        return self.count if self.counts is not None else self.count * self.blocks

    @property
    def nbytes(self) -> int:
        """Bytes of data of all blocks together, without gaps."""
        return self.elements * self.type.size

    @property
    def cuts(self) -> tuple[int, ...]:
        """Boundaries of the blocks in the packed data, in bytes: one more than there are blocks."""
        size, position = self.type.size, 0
        found = [0]
        for count in self.counts if self.counts is not None else [self.count] * self.blocks:
            position += count * size
            found.append(position)
        return tuple(found)

    def pieces(self) -> list[tuple[int, int]]:
        """Address and number of elements of each contiguous run of elements, in the order of the packed data."""
        if self.counts is None or self.displs is None:
            return [(self.address, self.elements)] if self.elements else []
        found: list[tuple[int, int]] = []
        end = None
        for count, displ in zip(self.counts, self.displs, strict=True):
            if count and displ == end:
                found[-1] = found[-1][0], found[-1][1] + count
            elif count:
                found.append((self.address + displ * self.type.extent, count))
            end = displ + count if count else end
        return found


def op_code(op: Any) -> int | None:
    """The kernels' code of ``op``, or None for an op that only MPI can apply; TypeError if it is no op."""
    if isinstance(op, MPI.Op):
        code = _KERNEL_OPS.get(op.handle)
        if code is None and op.is_predefined:
            name = next((name for name in ("REPLACE", "NO_OP") if op == getattr(MPI, name)), "OP_NULL")
            raise TypeError(f"op: MPI.{name} reduces nothing")
        return code
    if isinstance(op, (Average, ReproducibleSum)):
        return _OP_CODES[_OWN_OPS[op]]
    own = " or ".join(map(repr, _OWN_OPS))
    raise TypeError(f"op must be an mpi4py.MPI.Op, {own}, not {type(op).__name__}")


def in_place(spec: Any) -> bool:
    """Whether ``spec`` means in place: MPI.IN_PLACE or, as in mpi4py, None, or a list that begins with MPI.IN_PLACE."""
    listed = isinstance(spec, (list, tuple)) and len(spec) > 1
    return spec is None or (spec[0] if listed else spec) is MPI.IN_PLACE


def checked_in_place(spec: Any, argument: str) -> bool:
    """As :func:`in_place`; what follows in a list has no effect, but TypeError or ValueError if it is wrong."""
    if not in_place(spec) or not isinstance(spec, (list, tuple)):
        return in_place(spec)
    _, count, displ, datatype = parts(spec, argument)
    if isinstance(datatype, str):
        of_mpi(datatype, argument)
    if count is not None and _index(count, argument) < 0:
        raise ValueError(f"{argument}: a count is negative: {count}")
    if displ is not None and _index(displ, argument):
        raise ValueError(f"{argument}: displacement {displ} from where there is no buffer")
    return True


def parse(spec: Any, argument: str, writable: bool, blocks: int = 1) -> Buffer:
    """The buffer that ``spec`` describes: an array, or ``[array, count, displacement, datatype]`` with parts left out.

    With ``blocks`` blocks, the count is that of one block. TypeError if ``spec`` is no buffer; ValueError if it is
    strided, too short, or read-only while ``writable`` is set. The message names ``argument``.
    """
    memory, count, displ, datatype = parts(spec, argument)
    address, nbytes, own, hold = memory_of(memory, datatype, argument, writable)
    if count is not None:
        count = _index(count, argument)
        if memory is None and count > 0:
            raise ValueError(f"{argument}: the buffer is None, but the count is {count}")
    shift = 0 if displ is None else _index(displ, argument)
    buffer = Buffer(address, 0, own, (memory, datatype, hold), blocks)
    nowhere = memory is None or memory is MPI.BOTTOM
    _counted(buffer, memory, None if nowhere else nbytes, count, shift, argument)
    if writable and not nowhere:
        refuse_repeats(memory, nbytes, own, buffer.elements, argument)
    return buffer


def _index(value: Any, argument: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{argument}: expected an integer count, not {type(value).__name__}") from None


def _counted(
    buffer: Buffer, memory: Any, nbytes: int | None, count: int | None, shift: int, argument: str
) -> Buffer:  # fmt: skip
    """``buffer`` with its count, given or inferred from ``nbytes``, the length of its memory (None: unknown)."""
    extent = buffer.type.extent
    if nbytes is None:
        count, there = count or 0, None
    else:
        if extent <= 0 and (shift or count is None) and nbytes:
            raise ValueError(f"{argument}: a datatype of extent {extent} needs a count, and no displacement")
        there = nbytes // extent if extent > 0 else None
    if count is None:
        assert nbytes is not None
        count = _inferred(nbytes, shift, buffer, argument)
    elements = count * buffer.blocks
    if count < 0 or shift < 0 or (nbytes is not None and not within(memory, nbytes, buffer.type, shift, elements)):
        room = f"{nbytes} bytes" if there is None else there
        raise ValueError(f"{argument}: {elements} elements from {shift} on in a buffer of {room}")
    buffer.count = count
    buffer.address = addressed(buffer.address, shift, elements, buffer.type, argument)
    if nbytes is None and shift:
        raise ValueError(f"{argument}: displacement {shift} from where there is no buffer")
    return buffer


def addressed(base: int, shift: int, count: int, kind: Type, argument: str) -> int:
    """The address of ``count`` elements from the ``shift``-th after ``base`` on; ValueError if it is out of range."""
    first = base + shift * kind.extent
    if not 0 <= first <= first + count * max(kind.extent, kind.size) < 1 << 63:
        raise ValueError(f"{argument}: {count} elements from {shift} on are beyond any memory")
    return first


def _inferred(nbytes: int, shift: int, buffer: Buffer, argument: str) -> int:
    extent, blocks = buffer.type.extent, buffer.blocks
    if nbytes == 0:
        return 0
    if nbytes % extent:
        raise ValueError(f"{argument}: {nbytes} bytes are not a multiple of the datatype's extent, {extent}")
    elements = nbytes // extent - shift
    if elements % blocks:
        raise ValueError(f"{argument}: {elements} elements cannot be divided among {blocks} ranks")
    return elements // blocks


def within(memory: Any, nbytes: int, kind: Type, shift: int, count: int) -> bool:
    """Whether the data of ``count`` elements, from number ``shift`` on, lie within a buffer of ``nbytes`` bytes.

    With negative extents, lower bounds or ``shift`` the data may begin before a view, but not before the array it is a
    view of.
    """
    ends = shift * kind.extent, (shift + count - 1) * kind.extent
    if count == 0:
        return ends[0] <= nbytes
    before = min(ends) + kind.lower
    return max(ends) + kind.upper <= nbytes and (before >= 0 or before >= -room_before(memory))


def refuse_overlap(one: int, other: int, length: int, other_length: int, remedy: str) -> None:
    """ValueError if the ``length`` bytes at ``one`` and the ``other_length`` bytes at ``other`` overlap."""
    if length and other_length and one < other + other_length and other < one + length:
        raise ValueError(f"sendbuf and recvbuf overlap; pass MPI.IN_PLACE {remedy}")


def refuse_repeats(memory: Any, nbytes: int, kind: Type, count: int, argument: str) -> None:
    """ValueError if a receive buffer is too short for its elements unless they overlap, which MPI forbids."""
    if abs(kind.extent) < kind.size and count * kind.size > nbytes + room_before(memory):
        raise ValueError(f"{argument}: {count} elements of {kind.size} bytes overlap in a buffer of {nbytes} bytes")


def room_before(memory: Any) -> int:
    """Bytes from the start of the array that owns the memory to the start of ``memory``, a view of it."""
    if not isinstance(memory, np.ndarray):
        return 0
    owner = memory
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return _core.address(memory) - _core.address(owner) if min(owner.strides, default=0) >= 0 else 0


def parts(spec: Any, argument: str, pairs: tuple[Any, ...] = (list, tuple)) -> tuple[Any, Any, Any, Any]:
    """Memory, count, displacement and datatype of a specification; None for parts that are left out.

    TypeError if it is no buffer, ValueError for a list of the wrong length. ``pairs`` are the types of a pair (count,
    displacement) in the place of the count.
    """
    if spec is None:
        raise TypeError(f"{argument}: expected a buffer, not NoneType")
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    found: list[Any] = list(spec)
    if not 2 <= len(found) <= 4:
        raise ValueError(f"{argument}: expected [buffer, count, displacement, datatype], got {len(found)} parts")
    memory = found.pop(0)
    datatype = found.pop() if len(found) > 1 or isinstance(found[0], (MPI.Datatype, str)) else None
    if datatype is not None and not isinstance(datatype, (MPI.Datatype, str)):
        raise TypeError(f"{argument}: {datatype!r} is no MPI datatype")
    if len(found) == 1 and isinstance(found[0], pairs):
        pair = found[0]
        found = [*pair]
        if len(found) != 2:
            raise ValueError(f"{argument}: expected (count, displacement), got {found!r}")
    count, displ = (*found, None, None)[:2]
    return memory, count, displ, datatype
