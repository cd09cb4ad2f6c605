"""What mpi4py takes as a buffer, as an address, a count and a type."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core

__all__ = ["AVG", "DTYPE_CODES", "Buffer", "op_code", "parse"]

#: Code of each element type by name ("float32"), as the kernels number them.
DTYPE_CODES = {name: code for code, name in enumerate(_core.DTYPES)}
_OP_CODES = {name: code for code, name in enumerate(_core.OPS)}

_PAIRS = {
    "float_int": MPI.FLOAT_INT, "double_int": MPI.DOUBLE_INT, "long_int": MPI.LONG_INT,
    "two_int": MPI.INT_INT, "short_int": MPI.SHORT_INT, "long_double_int": MPI.LONG_DOUBLE_INT,
}  # fmt: skip
_PAIR_OF_HANDLE = {datatype.handle: name for name, datatype in _PAIRS.items()}


class _Average:
    """``collectives.AVG``: the sum over the ranks, divided by their number; for floating and complex types."""

    def __repr__(self) -> str:
        return "collectives.AVG"

    def __reduce__(self) -> str:
        return "AVG"


AVG = _Average()

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
    """Memory as a collective sees it.

    ``count`` elements of ``itemsize`` bytes at ``address``. ``dtype`` is the kernels' code, or None for types without
    kernels; ``named`` is the MPI datatype where the caller named one. ``dense``: no gaps between elements.
    """

    address: int
    count: int
    itemsize: int
    dtype: int | None
    named: MPI.Datatype | None
    dense: bool
    owner: Any

    @property
    def datatype(self) -> MPI.Datatype | None:
        """MPI's datatype, or None where MPI has none (float16, bfloat16)."""
        if self.named is not None or self.dtype is None:
            return self.named
        return _mpi_datatype(_core.DTYPES[self.dtype])

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.count * self.itemsize

    @property
    def type_name(self) -> str:
        """Name of the element type, for messages."""
        if self.dtype is not None:
            return _core.DTYPES[self.dtype]
        return self.named.Get_name() if self.named is not None else str(getattr(self.owner, "dtype", "unknown type"))


def op_code(op: Any) -> int | None:
    """The kernels' code of an op, or None for an op that only MPI can apply; TypeError for anything else."""
    if op is AVG:
        return _OP_CODES["avg"]
    if not isinstance(op, MPI.Op):
        raise TypeError(f"op must be an mpi4py.MPI.Op or collectives.AVG, not {type(op).__name__}")
    return _KERNEL_OPS.get(op.handle)


def parse(spec: Any, argument: str, writable: bool) -> Buffer:
    """Understand a buffer specification: an array, or ``[array, count, datatype]`` with parts left out.

    Raises TypeError for what is no buffer, ValueError for one that is strided, read-only where it is written, or too
    short; the message names the argument.
    """
    if isinstance(spec, (list, tuple)):
        return _from_list(spec, argument, writable)
    if spec is MPI.IN_PLACE:
        raise TypeError(f"{argument}: expected a buffer, not MPI.IN_PLACE")
    return _whole(spec, argument, writable)


def _whole(array: Any, argument: str, writable: bool) -> Buffer:
    """All elements of an array-like object, typed by itself."""
    if isinstance(array, np.ndarray):
        _check_ndarray(array, argument, writable)
        return _typed(_core.address(array), array.size, array.dtype, array)
    dtype = getattr(array, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype):
        return _from_tensor(array, str(dtype).rpartition(".")[2], argument, writable)
    try:
        view = memoryview(array)
        dtype = np.dtype(view.format or "u1")
    except (TypeError, ValueError) as e:
        raise TypeError(f"{argument}: expected a buffer, not {type(array).__name__} ({e})") from None
    if not view.contiguous:
        raise ValueError(f"{argument}: the buffer is strided; pass a contiguous one")
    if writable and view.readonly:
        raise ValueError(f"{argument}: the buffer is read-only")
    return _typed(MPI.Get_address(view) if view.nbytes else 0, view.nbytes // dtype.itemsize, dtype, array)


def _check_ndarray(array: np.ndarray, argument: str, writable: bool) -> None:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError(f"{argument}: the array is strided; pass a contiguous one (numpy.ascontiguousarray)")
    if writable and not flags.writeable:
        raise ValueError(f"{argument}: the array is read-only")


def _from_tensor(tensor: Any, name: str, argument: str, writable: bool) -> Buffer:
    """A tensor of another library (PyTorch), known by what it offers: data_ptr, is_contiguous, numel."""
    if not hasattr(tensor, "data_ptr") or not hasattr(tensor, "is_contiguous"):
        try:
            array = np.from_dlpack(tensor)
        except Exception as e:  # whatever the other library raises
            raise TypeError(f"{argument}: cannot take this {type(tensor).__name__} ({e})") from None
        return _whole(array, argument, writable)
    if getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu":
        raise TypeError(f"{argument}: a tensor on {tensor.device}; this build moves tensors in host memory only")
    if not tensor.is_contiguous():
        raise ValueError(f"{argument}: the tensor is strided; pass tensor.contiguous()")
    code = DTYPE_CODES.get(name)
    return Buffer(tensor.data_ptr(), tensor.numel(), tensor.element_size(), code, None, True, tensor)


_of_dtype: dict[np.dtype, tuple[int, int | None, MPI.Datatype | None]] = {}  # itemsize, kernels' code, MPI's datatype


def _typed(address: int, count: int, dtype: np.dtype, owner: Any) -> Buffer:
    known = _of_dtype.get(dtype)
    if known is None:
        code = DTYPE_CODES.get(dtype.name) if dtype.isnative else None
        known = _of_dtype[dtype] = dtype.itemsize, code, _unserved(dtype) if code is None else None
    itemsize, code, named = known
    return Buffer(address, count, itemsize, code, named, True, owner)


def _unserved(dtype: np.dtype) -> MPI.Datatype | None:
    """MPI's datatype for a NumPy type without kernels (long double, say)."""
    try:
        return MPI.Datatype.fromcode(dtype.char) if dtype.isnative and dtype.kind in "biufc" else None
    except (ValueError, TypeError):
        return None


@functools.cache
def _mpi_datatype(name: str) -> MPI.Datatype | None:
    if name in ("float16", "bfloat16"):
        return None
    return _PAIRS[name] if name in _PAIRS else MPI.Datatype.fromcode(np.dtype(name).char)


def _from_list(spec: Any, argument: str, writable: bool) -> Buffer:
    parts = list(spec)
    if not 1 <= len(parts) <= 4:
        raise ValueError(f"{argument}: expected [buffer, count, displacement, datatype], got {len(parts)} parts")
    datatype = parts.pop() if len(parts) > 1 and isinstance(parts[-1], (MPI.Datatype, str)) else None
    if len(parts) == 4:
        raise TypeError(f"{argument}: {parts[3]!r} is no MPI datatype")
    if len(parts) == 3:
        parts[1:] = [(parts[1], parts[2])]
    whole = _whole(parts[0], argument, writable)
    if isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    if datatype is not None:
        whole = _retyped(whole, datatype, argument)
    if len(parts) > 1 and parts[1] is not None:
        _take_count(whole, parts[1], argument)
    return whole


def _take_count(buffer: Buffer, count: Any, argument: str) -> None:
    shift = 0
    if isinstance(count, (list, tuple)):
        count, shift = count
        shift = shift or 0
    if count is None:
        count = buffer.count - shift
    if count < 0 or shift < 0 or count + shift > buffer.count:
        raise ValueError(f"{argument}: {count} elements from {shift} on in a buffer of {buffer.count}")
    extent = buffer.itemsize if buffer.dense or buffer.named is None else buffer.named.Get_extent()[1]
    buffer.address += shift * extent
    buffer.count = count


def _retyped(whole: Buffer, datatype: MPI.Datatype, argument: str) -> Buffer:
    """The same memory as elements of an MPI datatype."""
    size = datatype.Get_size()
    lower, extent = datatype.Get_extent()
    if size == 0 or extent <= 0:
        raise ValueError(f"{argument}: datatype of size {size} and extent {extent}")
    pair = _PAIR_OF_HANDLE.get(datatype.handle)
    if pair is not None:
        return Buffer(whole.address, whole.nbytes // extent, extent, DTYPE_CODES[pair], datatype, True, whole.owner)
    named = datatype.Get_envelope()[3] == MPI.COMBINER_NAMED
    code = None
    if named and size == extent:
        try:
            code = DTYPE_CODES.get(np.dtype(datatype.tocode()).name)
        except (ValueError, TypeError):
            code = None
    dense = size == extent and lower == 0
    return Buffer(whole.address, whole.nbytes // extent, size, code, datatype, dense, whole.owner)
