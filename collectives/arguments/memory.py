"""The memory behind an object: its address, its length, its type, and what keeps it alive."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..core import _core
from .datatypes import Type, of_mpi, of_name, of_numpy

__all__ = ["LOWEST", "Memory", "OnDevice", "Placed", "dlpack_name", "memory_of"]

#: No memory of a program lies below this address (Linux's vm.mmap_min_addr).
LOWEST = 1 << 16

#: Device types of DLPack: those whose memory the processor can read, and others.
_HOST = {1: "CPU", 3: "CUDA, page-locked on the host", 11: "ROCm, page-locked on the host"}
#: Managed memory can be read, but work of a GPU on it may be under way, for which nothing here would wait.
_CUDA = {2: "CUDA", 13: "CUDA, managed"}
_DEVICES = {
    **_CUDA, 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU", 17: "MAIA",
}  # fmt: skip


class Memory(NamedTuple):
    """``nbytes`` bytes at ``address``, elements of ``type``; the memory stays valid as long as ``hold`` lives."""

    address: int
    nbytes: int
    type: Type
    hold: Any = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Memory whose place is known already, in the place of the array that it is; the processor may not reach it.

    ``capsule`` is the DLPack capsule that told the place. It keeps the memory of a library that exports a copy.
    """

    address: int
    nbytes: int
    type: Type
    hold: Any
    capsule: Any = None


class OnDevice(TypeError):
    """An argument is an array on a GPU of NVIDIA's, which :mod:`collectives.cuda` serves."""


def memory_of(thing: Any, datatype: Any, argument: str, writable: bool) -> Memory:
    """The memory of ``thing``; its elements are of ``datatype``, or of the object's own type if that is None.

    TypeError if it is no memory that the processor can read; ValueError if it is strided, or read-only while
    ``writable`` is set. The message names ``argument``.
    """
    if thing is None or thing is MPI.BOTTOM:
        if datatype is None:
            raise TypeError(f"{argument}: {thing} needs a datatype")
        return Memory(0, 0, of_mpi(datatype, argument))
    if thing is MPI.IN_PLACE:  # which shows Python an empty buffer
        raise TypeError(f"{argument}: expected a buffer, not MPI.IN_PLACE")
    if isinstance(thing, np.ndarray):
        _check_array(thing, argument, writable)
        kind = of_mpi(datatype, argument) if datatype is not None else of_numpy(thing.dtype)
        return Memory(_core.address(thing), thing.nbytes, kind, _core.hold(thing))
    if hasattr(thing, "data_ptr") and hasattr(thing, "is_contiguous"):
        return _tensor(thing, datatype, argument, writable)
    try:
        view = memoryview(thing)
    except TypeError as e:
        return _foreign(thing, datatype, argument, writable, e)
    except (BufferError, ValueError) as e:  # a closed mmap, a released memoryview
        raise ValueError(f"{argument}: {e}") from None
    return _buffer(thing, view, datatype, argument, writable)


def _check_array(array: np.ndarray, argument: str, writable: bool) -> None:
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous):
        raise ValueError(f"{argument}: the array is strided; pass a contiguous one (numpy.ascontiguousarray)")
    if writable and not flags.writeable:
        raise ValueError(f"{argument}: the array is read-only")
    if array.dtype.hasobject:
        raise _objects(argument)


def _objects(argument: str) -> TypeError:
    """The error for Python objects: their pointers mean nothing on other ranks, and references would be miscounted."""
    return TypeError(f"{argument}: the buffer holds Python objects; pass them to the methods in lower case")


def _buffer(thing: Any, view: memoryview, datatype: Any, argument: str, writable: bool) -> Memory:
    """The memory of an object with Python's buffer protocol, seen through ``view``."""
    if not view.contiguous:
        raise ValueError(f"{argument}: the buffer is strided; pass a contiguous one")
    if writable and view.readonly:
        raise ValueError(f"{argument}: the buffer is read-only")
    if "O" in re.sub(":[^:]*:", "", view.format or ""):  # PEP 3118's code of objects, outside field names
        raise _objects(argument)
    try:
        kind = of_mpi(datatype, argument) if datatype is not None else of_numpy(np.dtype(view.format or "u1"))
    except TypeError as e:
        raise TypeError(f"{argument}: expected a buffer, not {type(thing).__name__} ({e})") from None
    return Memory(MPI.Get_address(view) if view.nbytes else 0, view.nbytes, kind, view)


def _foreign(thing: Any, datatype: Any, argument: str, writable: bool, error: Exception) -> Memory:
    """The memory of an object with DLPack. CUDA's array interface does not say whether the memory is on the host."""
    if isinstance(thing, Placed):
        kind = thing.type if datatype is None else of_mpi(datatype, argument)
        return Memory(thing.address, thing.nbytes, kind, thing)
    if not hasattr(thing, "__dlpack__"):
        if hasattr(thing, "__cuda_array_interface__"):
            what = f"an object with __cuda_array_interface__ ({type(thing).__name__})"
            raise OnDevice(f"{argument}: {what} is on a GPU; this call moves arrays in host memory only")
        raise TypeError(f"{argument}: expected a buffer, not {type(thing).__name__} ({error})")
    if hasattr(thing, "__dlpack_device__"):  # asked first, because an export may wait for the device, or copy
        _check_device(int(thing.__dlpack_device__()[0]), argument)
    try:
        code, bits, lanes, device = _core.dlpack_type(_capsule(thing))
        _check_device(device, argument)
        held = MPI.buffer.frombuffer(thing, readonly=not writable)
    except (BufferError, ValueError, RuntimeError) as e:
        raise ValueError(f"{argument}: {e}") from None
    if datatype is not None:
        kind = of_mpi(datatype, argument)
    else:
        kind = of_name(dlpack_name(code, bits, lanes, argument))
    return Memory(held.address, held.nbytes, kind, held)


def _capsule(thing: Any) -> Any:
    """The DLPack capsule of ``thing``; read-only arrays can only be exported with version 1."""
    try:
        return thing.__dlpack__(max_version=(1, 0))
    except TypeError:  # an object from before DLPack had versions
        return thing.__dlpack__()


def _check_device(device: int, argument: str) -> None:
    """TypeError for the memory of a device that the processor cannot read; ``device`` is DLPack's number."""
    if device not in _HOST:
        name = _DEVICES.get(device, f"DLPack's number {device}")
        error = OnDevice if device in _CUDA else TypeError
        raise error(f"{argument}: an array on a device ({name}); this call moves arrays in host memory only")


def dlpack_name(code: int, bits: int, lanes: int, argument: str) -> str:
    """Name of a DLPack element type; TypeError if it is unknown."""
    if code == 2 and lanes == 2:
        code, bits, lanes = 5, 2 * bits, 1
    kind = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}.get(code)
    if kind is None or lanes != 1:
        raise TypeError(f"{argument}: elements of DLPack's type {code} of {bits} bits, {lanes} at once")
    return kind if kind == "bool" else f"{kind}{bits}"


def _tensor(tensor: Any, datatype: Any, argument: str, writable: bool) -> Memory:
    """The memory of a PyTorch tensor, or of an object with the same data_ptr, is_contiguous and numel."""
    if getattr(getattr(tensor, "device", None), "type", "cpu") != "cpu":
        error = OnDevice if tensor.device.type == "cuda" else TypeError
        raise error(f"{argument}: a tensor on {tensor.device}; this call moves tensors in host memory only")
    if not tensor.is_contiguous():
        raise ValueError(f"{argument}: the tensor is strided; pass tensor.contiguous()")
    for lazy, resolved in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):  # the memory has other values
        if getattr(tensor, lazy, bool)():
            raise ValueError(f"{argument}: the tensor is a lazy view; pass tensor.{resolved}()")
    if datatype is not None:
        kind = of_mpi(datatype, argument)
    else:
        name = str(tensor.dtype).rpartition(".")[2]
        kind = of_name(name, tensor.element_size())
    hold = tensor.detach() if hasattr(tensor, "detach") else tensor  # `tensor.data = ...` gives it another storage
    return Memory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), kind, hold)
