"""Gradients on the heap, so that an all-reduce of them copies nothing.

DistributedDataParallel allocates its buckets itself, and a program cannot tell torch where. But torch can move a
storage into shared memory in place (``share_memory_``). That gives the storage a mapping of whole pages of its own.
Then pages of a block of the heap are mapped over that mapping, at the same addresses. So torch reads and writes the
heap's memory there, and the engine gets the block's own address.
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

SHORTEST = 64 << 10  # bytes; placing a shorter storage makes no difference
SPARE = 16 << 20  # bytes of /dev/shm that are left to other programs


class _Placed(NamedTuple):
    storage: StorageWeakRef
    address: int  # of the pages in the heap
    nbytes: int
    block: _core.HeapBlock


_placed: dict[int, _Placed] = {}  # by the address of the storage


def _after_fork() -> None:
    """In a forked child: map the pages anew, so that what the child writes is its own, as in all memory of the heap."""
    for begin, placed in _placed.items():
        if not placed.storage.expired():
            placed.block.appear_at(placed.address, placed.nbytes, begin)


os.register_at_fork(after_in_child=_after_fork)


def address_of(tensor: torch.Tensor) -> int:
    """The address of a tensor's memory for the engine: on the heap, if :func:`place` has put it there."""
    address = tensor.data_ptr()
    if _placed and address:  # a tensor without elements has none
        begin = tensor.untyped_storage().data_ptr()
        found = _placed.get(begin)
        if found is not None and not found.storage.expired():
            return address - begin + found.address
    return address


def place(tensor: torch.Tensor) -> str | None:
    """Put the storage of a tensor, with all its views, on the heap. Returns None, or why the storage stays in its
    place.

    The addresses of the elements change. So nothing outside torch may hold such an address: no NumPy array, for
    example, that shares the memory. A storage on the heap cannot be sent to other processes by torch.multiprocessing.
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
    if _free_of("/dev/shm") < nbytes + SPARE:  # touching pages without memory would end the process
        return "/dev/shm has no room to move it through"
    try:
        block = _core.HeapBlock(own, nbytes + mmap.PAGESIZE)
    except MemoryError as e:
        return str(e)
    piece = -(-block.address // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        fd, size = storage._share_fd_cpu_()[:2]  # what share_memory_ does, whatever the sharing strategy is
    except RuntimeError as e:  # other processes have taken the room in /dev/shm, or there are no more descriptors
        return str(e)
    ctypes.memmove(piece, storage.data_ptr(), storage.nbytes())
    block.appear_at(piece, nbytes, storage.data_ptr())
    os.ftruncate(fd, 0)  # gives back the pages that the heap's now hide
    os.ftruncate(fd, size)
    _placed[storage.data_ptr()] = _Placed(StorageWeakRef(storage), piece, nbytes, block)
    return None


def _forget() -> None:
    """Give back the blocks of storages that no longer exist; torch has unmapped their pages."""
    for begin in [begin for begin, placed in _placed.items() if placed.storage.expired()]:
        del _placed[begin]


def _free_of(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def heap_hook(group, bucket):  # without annotations: torch takes none that are text
    """A communication hook of DistributedDataParallel: puts buckets on the heap and averages gradients there, in place.

    Buckets of less than 64 KiB, and those that `place` cannot move, stay where they are, with the same result. Returns
    the future of the averaged bucket, as DistributedDataParallel expects.

    Use ``net.register_comm_hook(group, heap_hook)``, where ``group`` is a group of the backend ``collectives``, or None
    for the default group. The result is that of DistributedDataParallel without a hook, with one difference: the sum is
    divided by the number of ranks, not each term.
    """
    world = group if group is not None else dist.group.WORLD
    buffer = bucket.buffer()
    place(buffer)
    opts = c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    return world.allreduce([buffer], opts).get_future().then(lambda future: future.value()[0])
