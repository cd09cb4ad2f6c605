"""What mpi4py takes as a buffer, as an address, a count and a type."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core
from .datatypes import Type, of_mpi, of_name, of_numpy

__all__ = [
    "AVG", "REPRODUCIBLE_SUM", "Buffer", "addressed", "in_place", "op_code", "parse", "refuse_repeats", "typed_memory",
    "within",
]  # fmt: skip

_OP_CODES = {name: code for code, name in enumerate(_core.OPS)}


class _Average:
    """``collectives.AVG``: the sum over the ranks, divided by their number; for floating and complex types."""

    def __repr__(self) -> str:
        return "collectives.AVG"

    def __reduce__(self) -> str:
        return "AVG"


class _ReproducibleSum:
    """``collectives.REPRODUCIBLE_SUM``: the exact sum over the ranks, rounded once; for float32 and float64.

    Its bits depend neither on order, number of ranks and algorithm, nor on what lies where (docs/reproducibility.md).
    """

    def __repr__(self) -> str:
        return "collectives.REPRODUCIBLE_SUM"

    def __reduce__(self) -> str:
        return "REPRODUCIBLE_SUM"


AVG = _Average()
REPRODUCIBLE_SUM = _ReproducibleSum()
#: Ops that are ours alone, with the names of their kernels.
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
    """Memory as a collective sees it: ``count`` elements of ``type`` at ``address``, for each of ``blocks`` blocks.

    The vector forms have a count and a displacement (in extents of the type) for every block instead, in ``counts`` and
    ``displs``; ``count`` is then the sum.
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
        """Elements of all blocks together."""
        return self.count if self.counts is not None else self.count * self.blocks

    @property
    def nbytes(self) -> int:
        """Bytes of data in all blocks together."""
        return self.elements * self.type.size

    @property
    def cuts(self) -> tuple[int, ...]:
        """Boundaries of the blocks in the packed data, in bytes."""
        size, position = self.type.size, 0
        found = [0]
        for count in self.counts if self.counts is not None else [self.count] * self.blocks:
            position += count * size
            found.append(position)
        return tuple(found)

    def pieces(self) -> list[tuple[int, int]]:
        """Address and elements of every run of elements, in the order of the packed data."""
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
    """The kernels' code of an op, or None for an op that only MPI can apply; TypeError for anything else."""
    if isinstance(op, MPI.Op):
        return _KERNEL_OPS.get(op.handle)
    if isinstance(op, (_Average, _ReproducibleSum)):
        return _OP_CODES[_OWN_OPS[op]]
    own = " or ".join(map(repr, _OWN_OPS))
    raise TypeError(f"op must be an mpi4py.MPI.Op, {own}, not {type(op).__name__}")


def in_place(buffer: Any) -> bool:
    """Whether an argument says that there is no buffer of its own; None does too, as with mpi4py."""
    return buffer is None or buffer is MPI.IN_PLACE


def parse(spec: Any, argument: str, writable: bool, blocks: int = 1) -> Buffer:
    """Understand a buffer specification: an array, or ``[array, count, datatype]`` with parts left out.

    Where the buffer has a block for every rank, counts are those of one block. Raises TypeError for what is no buffer,
    ValueError for one that is strided, read-only where it is written, or too short; the message names the argument.
    """
    if not isinstance(spec, (list, tuple)):
        if spec is MPI.IN_PLACE or spec is None:
            name = "NoneType" if spec is None else "MPI.IN_PLACE"
            raise TypeError(f"{argument}: expected a buffer, not {name}")
        address, nbytes, own = typed_memory(spec, None, argument, writable)
        return _counted(Buffer(address, 0, own, spec, blocks), spec, nbytes, None, 0, argument)
    memory, count, displ, datatype = _parts(spec, argument)
    address, nbytes, own = typed_memory(memory, datatype, argument, writable)
    if count is not None:
        count = _index(count, argument)
        if memory is None and count > 0:
            raise ValueError(f"{argument}: the buffer is None, but the count is {count}")
    shift = 0 if displ is None else _index(displ, argument)
    buffer = Buffer(address, 0, own, (memory, datatype), blocks)
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
    """The buffer with its count, given or inferred from the ``nbytes`` bytes of its memory (None: no known length)."""
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
    return buffer


def addressed(base: int, shift: int, count: int, kind: Type, argument: str) -> int:
    """The address of ``count`` elements, the ``shift``-th after ``base`` first; ValueError where there is no memory."""
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
    """Whether the data of ``count`` elements, the ``shift``-th first, end within a buffer of ``nbytes`` bytes.

    They may begin before it, where extents or lower bounds are negative, as far as the array goes that it is a view of.
    """
    ends = shift * kind.extent, (shift + count - 1) * kind.extent
    if count == 0:
        return ends[0] <= nbytes
    before = min(ends) + kind.lower
    return max(ends) + kind.upper <= nbytes and (before >= 0 or before >= -_room_before(memory))


def refuse_repeats(memory: Any, nbytes: int, kind: Type, count: int, argument: str) -> None:
    """Refuse to receive more bytes than there are: elements that overlap, which MPI forbids where it writes."""
    if abs(kind.extent) < kind.size and count * kind.size > nbytes + _room_before(memory):
        raise ValueError(f"{argument}: {count} elements of {kind.size} bytes overlap in a buffer of {nbytes} bytes")


def _room_before(memory: Any) -> int:
    """Bytes from the begin of the array that owns the memory to the begin of a view of it."""
    if not isinstance(memory, np.ndarray):
        return 0
    owner = memory
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return _core.address(memory) - _core.address(owner) if min(owner.strides, default=0) >= 0 else 0


def _parts(spec: Any, argument: str) -> tuple[Any, Any, Any, Any]:
    """Memory, count, displacement and datatype of a specification."""
    parts = list(spec)
    if not 1 <= len(parts) <= 4:
        raise ValueError(f"{argument}: expected [buffer, count, displacement, datatype], got {len(parts)} parts")
    datatype = parts.pop() if len(parts) > 1 and isinstance(parts[-1], (MPI.Datatype, str)) else None
    if len(parts) == 3 and datatype is None and parts[2] is None:
        parts.pop()
    if len(parts) == 4 or (len(parts) == 3 and datatype is None):
        raise TypeError(f"{argument}: {parts[-1]!r} is no MPI datatype")
    count = parts[1] if len(parts) > 1 else None
    displ = parts[2] if len(parts) > 2 else None
    if isinstance(count, (list, tuple)) and len(parts) == 2:
        if len(count) != 2:
            raise ValueError(f"{argument}: expected (count, displacement), got {count!r}")
        count, displ = count
    return parts[0], count, displ, datatype


def typed_memory(memory: Any, datatype: Any, argument: str, writable: bool) -> tuple[int, int, Type]:
    """Address and bytes of an object, and the type of its elements, given or its own."""
    if memory is None or memory is MPI.BOTTOM:
        if datatype is None:
            raise TypeError(f"{argument}: {memory} needs a datatype")
        return 0, 0, of_mpi(datatype, argument)
    if isinstance(memory, np.ndarray):
        _check_ndarray(memory, argument, writable)
        own = of_mpi(datatype, argument) if datatype is not None else of_numpy(memory.dtype)
        return _core.address(memory), memory.nbytes, own
    if not isinstance(getattr(memory, "dtype", np.dtype("u1")), np.dtype):
        return _tensor_memory(memory, datatype, argument, writable)
    return _buffer_memory(memory, datatype, argument, writable)


def _check_ndarray(array: np.ndarray, argument: str, writable: bool) -> None:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError(f"{argument}: the array is strided; pass a contiguous one (numpy.ascontiguousarray)")
    if writable and not flags.writeable:
        raise ValueError(f"{argument}: the array is read-only")
    if array.dtype.hasobject:
        raise _objects_error(argument)


def _objects_error(argument: str) -> TypeError:
    """Bytes that arrive would become pointers, and pointers that go come without a reference, whatever the datatype."""
    return TypeError(f"{argument}: the buffer holds Python objects; pass them to the methods in lower case")


def _buffer_memory(memory: Any, datatype: Any, argument: str, writable: bool) -> tuple[int, int, Type]:
    """What offers Python's buffer protocol, DLPack, or (in host memory) CUDA's array interface."""
    try:
        view = memoryview(memory)
    except TypeError as e:
        return _foreign_memory(memory, datatype, argument, writable, e)
    if not view.contiguous:
        raise ValueError(f"{argument}: the buffer is strided; pass a contiguous one")
    if writable and view.readonly:
        raise ValueError(f"{argument}: the buffer is read-only")
    if "O" in re.sub(":[^:]*:", "", view.format or ""):  # a code of PEP 3118, outside the names of fields
        raise _objects_error(argument)
    try:
        own = of_mpi(datatype, argument) if datatype is not None else of_numpy(np.dtype(view.format or "u1"))
    except TypeError as e:
        raise TypeError(f"{argument}: expected a buffer, not {type(memory).__name__} ({e})") from None
    return MPI.Get_address(view) if view.nbytes else 0, view.nbytes, own


def _foreign_memory(
    memory: Any, datatype: Any, argument: str, writable: bool, error: Exception
) -> tuple[int, int, Type]:
    """Host memory behind DLPack or CUDA's array interface, both of which mpi4py reads."""
    if not (hasattr(memory, "__dlpack__") or hasattr(memory, "__cuda_array_interface__")):
        raise TypeError(f"{argument}: expected a buffer, not {type(memory).__name__} ({error})")
    try:
        raw = MPI.buffer.frombuffer(memory, readonly=not writable)
    except (BufferError, ValueError, TypeError) as e:
        raise ValueError(f"{argument}: {e}") from None
    if datatype is not None:
        own = of_mpi(datatype, argument)
    elif hasattr(memory, "__dlpack__"):
        own = of_name(_dlpack_name(memory, argument))
    else:
        own = of_numpy(np.dtype(memory.__cuda_array_interface__["typestr"]))
    return raw.address, raw.nbytes, own


def _dlpack_name(memory: Any, argument: str) -> str:
    """Name of the element type of an object with ``__dlpack__``."""
    code, bits, lanes = _core.dlpack_type(memory.__dlpack__())
    if code == 2 and lanes == 2:
        code, bits, lanes = 5, 2 * bits, 1
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(code)
    if kind is None or lanes != 1:
        raise TypeError(f"{argument}: elements of DLPack's type {code} of {bits} bits, {lanes} at once")
    return kind if kind == "bool" else f"{kind}{bits}"


def _tensor_memory(tensor: Any, datatype: Any, argument: str, writable: bool) -> tuple[int, int, Type]:
    """A tensor of another library (PyTorch), known by what it offers: data_ptr, is_contiguous, numel."""
    if not hasattr(tensor, "data_ptr") or not hasattr(tensor, "is_contiguous"):
        return _buffer_memory(tensor, datatype, argument, writable)
    if getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu":
        raise TypeError(f"{argument}: a tensor on {tensor.device}; this build moves tensors in host memory only")
    if not tensor.is_contiguous():
        raise ValueError(f"{argument}: the tensor is strided; pass tensor.contiguous()")
    if datatype is not None:
        own = of_mpi(datatype, argument)
    else:
        name = str(tensor.dtype).rpartition(".")[2]
        own = of_name(name, tensor.element_size())
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), own
