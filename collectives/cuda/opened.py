"""Memory on GPUs of other processes: how a rank describes its own, and what it has opened of the others'."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from ..core import _cuda
from .lanes import Lane

__all__ = ["PLACE", "Opened", "Place", "nowhere"]

#: Where an array is: the process, its allocation (0: none that others can open) with address and bytes, the distance of
#: the array from the allocation's address, and the handle that opens the allocation.
PLACE = np.dtype([
    ("process", "u8"), ("number", "u8"), ("base", "u8"), ("nbytes", "u8"), ("offset", "u8"), ("handle", "V64"),
])  # fmt: skip
Place = Any  # an element of an array of PLACE
KEPT = 64  # allocations of each rank that stay open


class _Key(NamedTuple):
    process: int
    number: int


class _Allocation(NamedTuple):
    base: int
    end: int
    here: int | None  # where this rank reads it; None if some rank cannot


def nowhere() -> Place:
    """The place of an array that others cannot open, or that this rank does not have."""
    return np.zeros((), PLACE)[()]


class Opened:
    """The allocations of ``size`` ranks that this rank can read; all ranks open and close the same ones, in step.

    A process never uses the number of an allocation again. So an allocation that was freed is not mistaken for a later
    one at the same address.
    """

    def __init__(self, lane: Lane, process: int, size: int, check: Callable[[], None]):
        self._check = check  # for waits: raises the reason for which a call of the ranks may never end
        self._lane, self._process, self._most = lane, process, KEPT * size
        self._handles: dict[int, bytes] = {}
        self._known: OrderedDict[_Key, _Allocation] = OrderedDict()  # the one that was used last is at the end

    def place(self, address: int, nbytes: int) -> Place:
        """The place of an own array; :func:`nowhere` if it lies in memory that other processes cannot open."""
        found = np.zeros((), PLACE)
        with contextlib.suppress(_cuda.CudaError, MemoryError):  # of memory pools, say
            number, base, whole = self._lane.driver.allocation(address)
            if address + nbytes <= base + whole:
                handle = np.void(self._handle(number, base))
                found[()] = self._process, number, base, whole, address - base, handle
        return found[()]

    def _handle(self, number: int, base: int) -> bytes:
        handle = self._handles.get(number)
        if handle is None:
            if len(self._handles) >= KEPT:
                self._handles.clear()
            handle = self._handles[number] = self._lane.driver.export_memory(base)
        return handle

    def new(self, places: Iterable[Place]) -> dict[_Key, Place]:
        """Those of the ``places`` of a call that are in allocations not known yet, one of each allocation."""
        found = {}
        for place in places:
            key = _Key(int(place["process"]), int(place["number"]))
            if key in self._known:
                self._known.move_to_end(key)
            elif key.number:
                found[key] = place
        return found

    def open(self, new: dict[_Key, Place], deadline: float | None) -> bool:
        """Open allocations; whether it could be done. Those that had their addresses before are closed, and a surplus.

        That waits for what the lane has under way, until the ``deadline``.
        """
        for key, place in new.items():
            base, end = int(place["base"]), int(place["base"]) + int(place["nbytes"])
            for other, one in list(self._known.items()):
                if other.process == key.process and one.base < end and base < one.end:
                    self._close(other, deadline)
            here = base if key.process == self._process else self._open(place["handle"].tobytes())
            self._known[key] = _Allocation(base, end, here)
        while len(self._known) > self._most:
            self._close(next(iter(self._known)), deadline)
        return all(self._known[key].here is not None for key in new)

    def _open(self, handle: bytes) -> int | None:
        try:
            return self._lane.driver.open_memory(handle)
        except (_cuda.CudaError, MemoryError):
            return None

    def refuse(self, keys: Iterable[_Key], deadline: float | None) -> None:
        """Keep in mind that a rank cannot open one of these allocations, which are in no call from now on."""
        for key in keys:
            one = self._known[key]
            self._close(key, deadline)
            self._known[key] = one._replace(here=None)

    def address(self, place: Place) -> int | None:
        """Where this rank reads the array at a place that is known; None if some rank cannot."""
        here = self._known[_Key(int(place["process"]), int(place["number"]))].here
        return None if here is None else here + int(place["offset"])

    def _close(self, key: _Key, deadline: float | None) -> None:
        here = self._known.pop(key).here
        if here is not None and key.process != self._process and not self._lane.abandoned:
            with self._lane.moment() as event:
                self._lane.driver.record(event, self._lane.down)
                self._lane.wait(event, deadline, self._check)
            self._lane.driver.close_memory(here)

    def close(self) -> None:
        """Close all."""
        for key in list(self._known):
            self._close(key, None)
