"""Arrays in shared memory: the heap of this process, and NumPy arrays on it."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import resource
import sys
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core import _core
from ..errors import CollectiveError

__all__ = ["attach", "empty", "forget_the_dead", "process_heap", "share", "share_arrays", "why_not"]

SIZE = 64 << 30  # bytes of address space; pages get memory when they are used

_why_not: str | None = None


_making = threading.Lock()  # without it two threads may make two heaps, and ranks look for flags in the wrong one


def process_heap() -> _core.Heap | None:
    """The heap of this process, which the first call makes; None if the system gives no shared memory."""
    if is_there():
        return _process_heap()
    with _making:
        return _process_heap()


@functools.cache
def _process_heap() -> _core.Heap | None:
    global _why_not
    try:
        return _core.Heap(SIZE)
    except OSError as e:
        _why_not = f"memfd: {e}"
        return None


def is_there() -> bool:
    """Whether :func:`process_heap` has been called in this process."""
    return _process_heap.cache_info().currsize > 0


def why_not() -> str | None:
    """Why there is no heap, or None."""
    return _why_not


_attached: dict[bytes, _core.Mapping] = {}


def attach(identity: bytes) -> _core.Mapping:
    """The mapping of the peer's heap ``identity``, which the first call makes; OSError if it cannot be mapped."""
    mapping = _attached.get(identity)
    if mapping is None:
        mapping = _attached[identity] = _core.Mapping(identity)
    return mapping


def forget_the_dead() -> None:
    """Drop the mappings of heaps whose processes have ended; groups that use a mapping keep it."""
    for identity, mapping in list(_attached.items()):
        if not mapping.alive:
            del _attached[identity]


def _usable_heap() -> _core.Heap:
    heap = process_heap()
    if heap is None:
        limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
        hint = "; the limit of address space (ulimit -v) is one reason" if limited else ""
        raise MemoryError(f"this process has no heap of shared memory ({_why_not}{hint})")
    if heap.inherited:
        raise CollectiveError("this process was forked from one that has a heap of shared memory; it gets none of it")
    return heap


def empty(shape: Any, dtype: Any = np.float64, *, zero: bool = False) -> np.ndarray:
    """A new array of ``shape`` and ``dtype`` on this process's heap, filled with zeros if ``zero``.

    Raises MemoryError if there is no memory or this process has no heap, CollectiveError in a forked child, TypeError
    for a ``dtype`` with Python objects, and ValueError for a negative or too great length.
    """
    heap = _usable_heap()
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"arrays of {dtype} hold Python objects, which cannot be shared")
    shape = _lengths(shape)
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes > sys.maxsize:
        raise ValueError(f"shape: {shape} has too many elements for an array")
    block = _core.HeapBlock(heap, max(1, nbytes), zero)
    return np.ndarray(shape, dtype, buffer=memoryview(block))


def share(array: Any) -> np.ndarray:
    """A copy of ``array`` on this process's heap, with its order in memory if that is C's or Fortran's.

    An array that is on the heap already is returned itself. Raises what :func:`empty` raises.
    """
    array = np.asarray(array)
    if is_there() and array.nbytes and _core.address(array) in _usable_heap():
        return array
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    made = empty(array.shape[::-1], array.dtype).T if fortran else empty(array.shape, array.dtype)
    made[...] = array
    return made


def _lengths(shape: Any) -> tuple[int, ...]:
    try:
        lengths = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
    except TypeError:
        raise TypeError(f"shape: expected an integer or a sequence of integers, got {shape!r}") from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape: {lengths} has a negative length")
    return lengths


def share_arrays(threshold: int = 4096) -> contextlib.AbstractContextManager[None]:
    """Let NumPy put its new arrays of at least ``threshold`` bytes on the heap, so that collectives need not copy them.

    The setting holds in the calling thread from the call on, or to the end of a ``with`` block. Existing arrays are not
    moved. In a forked child new arrays are private, and so are the child's writes to older arrays. Raises MemoryError
    if this process has no heap, CollectiveError in a forked child. Method: NumPy's allocator hook (NEP 49).
    """
    return _until_exit(_core.share_arrays(_usable_heap(), threshold))


class _until_exit(contextlib.AbstractContextManager[None]):
    def __init__(self, before: Any):
        self.before = before

    def __exit__(self, *exception: Any) -> None:
        _core.restore_handler(self.before)
