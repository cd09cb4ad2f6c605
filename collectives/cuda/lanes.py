"""What a process needs of a GPU to copy through host memory: a context, two streams, and pinned memory in slots."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType

import numpy as np

from ..core import _core, _cuda
from ..errors import CollectiveError, CollectiveTimeout
from ..system import heap
from . import kernels
from .driver import driver

__all__ = ["SLOT", "Lane", "Slot", "lane_of"]

#: Bytes of pinned memory in a slot for a piece of a call, and the most bytes that are kept for later calls.
SLOT = 4 << 20
KEPT = 64 << 20
#: How a wait for an event looks: at first without a pause, then with pauses of this many seconds. Each so many looks it
#: sees whether the event can still pass.
LOOKS = 200
PAUSE = 20e-6
CHECKED = 300


class Slot:
    """``nbytes`` bytes of pinned memory at ``address``; ``event`` stands for the last copy from or to it."""

    def __init__(self, own: _cuda.CudaDriver, nbytes: int):
        self._driver, self.nbytes = own, nbytes
        room = nbytes + mmap.PAGESIZE
        try:
            self._memory = heap.empty(room, np.uint8)  # from where the other ranks of the node read in place
        except (MemoryError, CollectiveError):
            self._memory = np.empty(room, np.uint8)
        self.address = -(-_core.address(self._memory) // mmap.PAGESIZE) * mmap.PAGESIZE
        own.pin(self.address, nbytes)
        try:
            self.event = own.event()
        except BaseException:
            own.unpin(self.address)
            raise

    def free(self) -> None:
        """Give the memory back; no copy may be under way."""
        self._driver.free_event(self.event)
        self._driver.unpin(self.address)


class Lane:
    """The copies of this process from and to one GPU: ``down`` and ``up`` are streams of their own.

    In a ``with`` block the GPU's primary context, which other libraries use too, is the thread's current one.
    """

    #: Whether a call with other ranks failed, so that a stream may wait for ever: nothing is given back then.
    abandoned = False

    def __init__(self, number: int):
        self.number, self.driver = number, driver()
        self.context = self.driver.retain(number)
        self._lock = threading.Lock()
        self._idle: list[Slot] = []
        self._lost: list[Slot] = []
        self._scratch: dict[int, list[int]] = {}
        self._events: list[int] = []
        self._kernels: _cuda.Kernels | str | None = None
        try:
            with self:
                self.down, self.up = self._streams()
        except BaseException:
            self.driver.release(number)
            raise

    def __enter__(self) -> Lane:
        self.driver.push(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.driver.pop()

    def _streams(self) -> tuple[int, int]:
        first = self.driver.stream()
        try:
            return first, self.driver.stream()
        except BaseException:
            self.driver.free_stream(first)
            raise

    def abandon(self) -> None:
        """Go on with new streams, since the old ones may wait for a rank that does nothing more.

        What they may use is kept.
        """
        self.abandoned = True
        with self._lock, contextlib.suppress(_cuda.CudaError, MemoryError):  # of a device that has failed
            self.down, self.up = self._streams()
            self._scratch = {}

    def take(self, nbytes: int) -> Slot:
        """A slot of at least ``nbytes`` bytes; copies of an earlier call may be under way from or to it."""
        with self._lock:
            fitting = [slot for slot in self._idle if slot.nbytes >= nbytes]
            if fitting:
                found = min(fitting, key=lambda slot: slot.nbytes)
                self._idle.remove(found)
                return found
        return Slot(self.driver, max(1, -(-nbytes // SLOT)) * SLOT)

    def give(self, slot: Slot) -> None:
        """Give a slot back, from which no host call reads any more."""
        surplus = []
        with self._lock:
            self._idle.append(slot)
            while sum(idle.nbytes for idle in self._idle) > KEPT:
                surplus.append(max(self._idle, key=lambda idle: idle.nbytes))
                self._idle.remove(surplus[-1])
        for longest in surplus:
            self.wait(longest.event, None)
            longest.free()

    def lose(self, slots: list[Slot]) -> None:
        """Keep the slots of a call that failed: its copies, or messages of other ranks, may be under way still."""
        self._lost += slots

    def take_scratch(self, nbytes: int) -> int:
        """Memory on the GPU, whose earlier use may be under way on the stream ``down``."""
        with self._lock:
            unused = self._scratch.get(nbytes)
            if unused:
                return unused.pop()
        return self.driver.allocate(max(1, nbytes))

    def give_scratch(self, nbytes: int, address: int) -> None:
        """Keep memory of :meth:`take_scratch` for later, or free it if much is kept already."""
        with self._lock:
            kept = sum(length * len(addresses) for length, addresses in self._scratch.items())
            if kept + nbytes <= KEPT:
                self._scratch.setdefault(nbytes, []).append(address)
                return
        self.driver.free(address)

    @contextlib.contextmanager
    def moment(self) -> Iterator[int]:
        """An event for the block; what the block has ordered by it stays so when the event is used again."""
        event = self._events.pop() if self._events else self.driver.event()
        try:
            yield event
        finally:
            self._events.append(event)

    def kernels(self) -> _cuda.Kernels | str:
        """The reductions for this GPU, which the first call loads; or why there are none."""
        with self._lock:
            if self._kernels is None:
                self._kernels = kernels.load(self.driver)
            return self._kernels

    def wait(self, event: int, deadline: float | None, check: Callable[[], None] | None = None) -> None:
        """Wait until an event has passed; CollectiveTimeout after the ``deadline``, a time of the monotonic clock.

        ``check`` is called now and then. It raises the reason for which the event may never pass.
        """
        looks = 0
        while not self.driver.passed(event):
            looks += 1
            if looks > LOOKS:
                if deadline is not None and time.monotonic() > deadline:
                    raise CollectiveTimeout(f"GPU {self.number} has not done its work on the array in time")
                if check is not None and looks % CHECKED == 0 and not self.driver.passed(event):
                    check()
                time.sleep(PAUSE)

    def close(self) -> None:
        """Give everything back to the driver, unless a stream may never end its work."""
        if self.abandoned:
            return
        with contextlib.suppress(_cuda.CudaError, MemoryError), self:
            for stream in (self.down, self.up):
                self.driver.finish(stream)
                self.driver.free_stream(stream)
            for slot in self._idle + self._lost:
                slot.free()
            for address in itertools.chain(*self._scratch.values()):
                self.driver.free(address)
            for event in self._events:
                self.driver.free_event(event)
            if isinstance(self._kernels, _cuda.Kernels):
                self._kernels.free()
        self._idle, self._events = [], []
        with contextlib.suppress(_cuda.CudaError, MemoryError):
            self.driver.release(self.number)


_lanes: dict[int, Lane] = {}
_making = threading.Lock()


def lane_of(device: int) -> Lane:
    """The lane to the GPU with this number, which the first call makes."""
    with _making:
        found = _lanes.get(device)
        if found is None:
            if not _lanes:
                atexit.register(_close, os.getpid())
            found = _lanes[device] = Lane(device)
    return found


def _close(process: int | None = None) -> None:
    """Give back what the lanes hold, before the driver ends with the ``process``; its forked children have none."""
    while _lanes and process in (None, os.getpid()):
        _lanes.popitem()[1].close()
