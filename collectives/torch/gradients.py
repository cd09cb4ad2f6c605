"""Gradients on the heap, so that an all-reduce of them copies nothing.

DistributedDataParallel allocates its buckets itself, and torch has no way to say where. But a storage can be moved into
shared memory in place (``share_memory_``), which gives it a mapping of whole pages of its own, and the pages of a block
of the heap can appear at the addresses of that mapping. What torch reads and writes there is then the heap's memory;
the engine is given the block's own address.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.multiprocessing.reductions import StorageWeakRef

from ..core import _core
from ..system import heap

__all__ = ["address_of", "heap_hook", "place"]

SHORTEST = 64 << 10  # bytes from which on it makes a difference
SPARE = 16 << 20  # bytes of /dev/shm that are left to others


class _Placed(NamedTuple):
    storage: StorageWeakRef
    address: int  # of the pages in the heap
    nbytes: int
    block: _core.HeapBlock


_placed: dict[int, _Placed] = {}  # by the address of the storage


def _after_fork() -> None:
    """What a forked child writes is its own, as with all other memory of the heap."""
    for begin, placed in _placed.items():
        if not placed.storage.expired():
            placed.block.appear_at(placed.address, placed.nbytes, begin)


os.register_at_fork(after_in_child=_after_fork)


def address_of(tensor: torch.Tensor) -> int:
    """Where the engine finds a tensor's memory: on the heap, if it has been placed there."""
    address = tensor.data_ptr()
    if _placed:
        begin = tensor.untyped_storage().data_ptr()
        found = _placed.get(begin)
        if found is not None and not found.storage.expired():
            return address - begin + found.address
    return address


def place(tensor: torch.Tensor) -> str | None:
    """Put the storage of a tensor, with all its views, on the heap; None, or why it stays where it is.

    The addresses of its elements change: nothing outside torch may hold any, as NumPy arrays that share its memory do.
    What is there can no longer be sent to other processes by torch.multiprocessing.
    """
    storage = tensor.untyped_storage()
    found = _placed.get(storage.data_ptr())
    if found is not None and not found.storage.expired():
        return None
    _forget()
    own, nbytes = heap.process_heap(), -(-storage.nbytes() // mmap.PAGESIZE) * mmap.PAGESIZE
    if own is None:
        return heap.why_not()
    if storage.nbytes() < SHORTEST:
        return f"{storage.nbytes()} bytes are too few"
    if storage.device.type != "cpu" or not storage.resizable() or storage.is_shared():
        return "its memory is not torch's own"
    if _free_of("/dev/shm") < nbytes + SPARE:  # touching pages that are not there would end the process
        return "/dev/shm has no room to move it through"
    try:
        block = _core.HeapBlock(own, nbytes + mmap.PAGESIZE)
    except MemoryError as e:
        return str(e)
    piece = -(-block.address // mmap.PAGESIZE) * mmap.PAGESIZE
    fd, size = storage._share_fd_cpu_()[:2]  # what share_memory_ does, whatever its strategy is
    ctypes.memmove(piece, storage.data_ptr(), storage.nbytes())
    block.appear_at(piece, nbytes, storage.data_ptr())
    os.ftruncate(fd, 0)  # gives back the pages that the heap's now hide
    os.ftruncate(fd, size)
    _placed[storage.data_ptr()] = _Placed(StorageWeakRef(storage), piece, nbytes, block)
    return None


def _forget() -> None:
    """Give back what storages held that are no more; torch has unmapped their pages."""
    for begin in [begin for begin, placed in _placed.items() if placed.storage.expired()]:
        del _placed[begin]


def _free_of(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def heap_hook(group, bucket):  # without annotations: torch takes none that are text
    """A communication hook: averages gradients over a group (None: the world), in place, in buckets on the heap.

    ``net.register_comm_hook(None, heap_hook)``; any group of the backend ``collectives`` will do for the first
    argument. It gives what DistributedDataParallel gives without a hook, but that the sum is divided, not the terms.
    """
    world = group if group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    place(buffer)
    opts = c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    return world.allreduce([buffer], opts).get_future().then(lambda future: future.value()[0])
