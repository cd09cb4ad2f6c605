"""Arrays on a GPU as memory: the address, the element type, and the stream that the array's library works on."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arguments.datatypes import Type, of_name, of_numpy
from ..arguments.memory import Placed, dlpack_name
from ..core import _cuda
from .driver import driver

__all__ = ["DEFAULT_STREAM", "THREADS_STREAM", "Array", "array_of", "stream_of"]

#: The handle of the default stream, with which all streams are ordered that a program makes without a flag.
DEFAULT_STREAM = 1
#: The handle of a stream of which each thread has another one.
THREADS_STREAM = 2
_CUDA, _MANAGED = 2, 13  # DLPack's numbers


@dataclass(frozen=True, slots=True)
class Array:
    """An array on the GPU number ``device``; ``memory`` is what :mod:`collectives.arguments` takes for it."""

    memory: Placed
    device: int

    @property
    def stream(self) -> int | None:
        """The stream that the array's library works on now, in this thread; None if it does not say."""
        thing = self.memory.hold
        if _is_tensor(thing):
            torch = sys.modules.get("torch")
            return None if torch is None else torch.cuda.current_stream(thing.device).cuda_stream
        return getattr(thing, "__cuda_array_interface__", {}).get("stream")

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.memory.nbytes

    @property
    def exports(self) -> bool:
        """Whether the array's library can make a stream wait for its own work (DLPack)."""
        return self.stream is None and hasattr(self.memory.hold, "__dlpack__")

    def export(self, stream: int) -> None:
        """Let ``stream`` wait for the work of the array's library on the array."""
        _capsule(self.memory.hold, stream)


def array_of(thing: Any, argument: str, writable: bool) -> Array:
    """The array on a GPU that ``thing`` is: torch's tensor, or an array with ``__cuda_array_interface__`` or DLPack.

    TypeError or ValueError, with the name of the ``argument``, if it cannot be used.
    """
    if _is_tensor(thing):
        found = _of_torch(thing, argument)
    elif hasattr(thing, "__cuda_array_interface__"):
        found = _of_interface(thing, argument, writable)
    else:
        found = _of_dlpack(thing, argument, writable)
    return found


def _is_tensor(thing: Any) -> bool:
    return hasattr(thing, "data_ptr") and hasattr(thing, "is_contiguous")


def _of_torch(tensor: Any, argument: str) -> Array:
    if not tensor.is_contiguous():
        raise ValueError(f"{argument}: the tensor is strided; pass tensor.contiguous()")
    for lazy, resolved in (("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")):  # the memory has other values
        if getattr(tensor, lazy, bool)():
            raise ValueError(f"{argument}: the tensor is a lazy view; pass tensor.{resolved}()")
    kind = of_name(str(tensor.dtype).rpartition(".")[2], tensor.element_size())
    nbytes = tensor.numel() * tensor.element_size()
    return Array(Placed(tensor.data_ptr(), nbytes, kind, tensor), tensor.device.index or 0)


def _of_interface(thing: Any, argument: str, writable: bool) -> Array:
    given = thing.__cuda_array_interface__
    address, readonly = given["data"]
    if given.get("mask") is not None:
        raise ValueError(f"{argument}: the array has a mask")
    kind, shape = _typed(thing, given, argument), given["shape"]
    _check(shape, given.get("strides"), kind.size, writable and readonly, argument)
    nbytes = math.prod(shape) * kind.size
    device = _ordinal(address, argument) if nbytes else 0
    return Array(Placed(address, nbytes, kind, thing), device)


def _typed(thing: Any, given: dict[str, Any], argument: str) -> Type:
    """The element type of an array with CUDA's interface, which has no code for bfloat16: DLPack tells then."""
    dtype = np.dtype(given["typestr"])
    if dtype.kind == "V" and hasattr(thing, "__dlpack__"):
        return of_name(dlpack_name(*_cuda.dlpack_array(_capsule(thing, -1))[5], argument))
    return of_numpy(dtype)


def _of_dlpack(thing: Any, argument: str, writable: bool) -> Array:
    try:
        capsule = _capsule(thing, -1)
        address, device, number, shape, strides, kind, readonly = _cuda.dlpack_array(capsule)
    except (BufferError, ValueError, RuntimeError) as e:
        raise ValueError(f"{argument}: {e}") from None
    if device not in (_CUDA, _MANAGED):
        raise TypeError(f"{argument}: an array on a device that is no GPU of NVIDIA's")
    known = of_name(dlpack_name(*kind, argument))
    inward = None if strides is None else [stride * known.size for stride in strides]
    _check(shape, inward, known.size, writable and readonly, argument)
    return Array(Placed(address, math.prod(shape) * known.size, known, thing, capsule), number)


def _capsule(thing: Any, stream: int) -> Any:
    """The DLPack capsule of ``thing``, for work on ``stream``, or without any wait if that is -1.

    BufferError if the library of ``thing`` can only export a copy. Libraries from before 2023 do not say whether it is.
    """
    try:
        return thing.__dlpack__(stream=stream, max_version=(1, 0), copy=False)
    except TypeError:  # the array API has had these two options since 2023.12
        return thing.__dlpack__(stream=stream)


def _check(shape: Sequence[int], strides: Sequence[int] | None, size: int, readonly: bool, argument: str) -> None:
    """ValueError for an array that is strided, or read-only where it must be written; strides are in bytes."""
    if readonly:
        raise ValueError(f"{argument}: the array is read-only")
    if strides is None or 0 in shape or not shape:
        return
    packed = list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=size))[::-1]
    backward = list(itertools.accumulate(shape[:-1], lambda a, b: a * b, initial=size))
    given = [(stride, length) for stride, length in zip(strides, shape, strict=True)]
    for layout in (packed, backward):
        if all(length == 1 or stride == right for (stride, length), right in zip(given, layout, strict=True)):
            return
    raise ValueError(f"{argument}: the array is strided; pass a contiguous one")


def _ordinal(address: int, argument: str) -> int:
    try:
        return driver().ordinal(address)
    except _cuda.CudaError as e:
        raise ValueError(f"{argument}: there is no memory of a GPU at its address ({e})") from None


def stream_of(given: Any) -> int:
    """The handle of the stream that a program passes: an integer, or a stream object of torch, CuPy, Numba or others.

    TypeError for anything else.
    """
    if hasattr(given, "__cuda_stream__"):
        protocol = given.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):  # torch, CuPy, Numba
        if hasattr(given, name):
            given = getattr(given, name)
            break
    given = getattr(given, "value", given)  # a ctypes pointer; None is the default stream
    if given is None:
        return DEFAULT_STREAM
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise TypeError(f"stream: expected a CUDA stream or its handle, not {type(given).__name__}")
    return given
