"""Calls on arrays of a GPU by way of host memory: copied down, served by the host's engines, copied up, in pieces.

While the host serves one piece, the next one is copied down and the last one up. Each piece has a slot of pinned memory
on either side, and each side has two slots in turn. What must wait for what is told to the driver by events, so that
nothing waits for the whole device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..arguments.packing import region
from ..core import _core
from .lanes import SLOT, Slot
from .ordering import Order

__all__ = ["ALL", "Side", "Staging", "pieces"]

ALL = -1  # the end of a piece that is the whole block, on sides whose blocks differ
#: Serves one piece on the host: addresses of input and result, begin and end of the piece in bytes of a block.
Serve = Callable[[int, int, int, int], None]


def pieces(block: int, blocks: int, unit: int) -> list[tuple[int, int]]:
    """Begin and end, in bytes of a block, of the pieces of ``blocks`` blocks of ``block`` bytes that fit in a slot.

    Each piece but the last has a multiple of ``unit`` bytes of each block. There is at least one piece.
    """
    fitting = SLOT // blocks
    step = fitting // (64 * unit) * (64 * unit) or fitting // unit * unit or unit
    return [(begin, min(begin + step, block)) for begin in range(0, block, step)] or [(0, 0)]


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a call: ``blocks`` blocks of ``block`` bytes, one after the other, on the GPU or on the host."""

    address: int
    blocks: int
    block: int
    on_device: bool

    def nbytes(self, begin: int, end: int) -> int:
        """Bytes of all blocks' part of a piece."""
        return self.blocks * ((self.block if end == ALL else end) - begin)

    def parts(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """For each run of adjacent bytes of a piece: its address, its place within the piece, its length."""
        length = self.nbytes(begin, end) // self.blocks
        if length == self.block or self.blocks == 1:
            yield self.address + begin, 0, length * self.blocks
        else:
            for i in range(self.blocks):
                yield self.address + i * self.block + begin, i * length, length


class Staging:
    """One call by way of host memory, in ``order`` with the program's streams.

    ``source`` and ``target`` are its input and its result, the same object if the call is in place, None where this
    rank has none. ``reads``: the input is significant on this rank. ``writes``: the result is.
    """

    def __init__(
        self, order: Order, source: Side | None, target: Side | None, *, reads: bool, writes: bool,
        deadline: float | None,
    ):  # fmt: skip
        self._order, self._lane, self._driver, self._deadline = order, order.lane, order.lane.driver, deadline
        self._down, self._up = order.lane.down, order.lane.up
        self._source, self._target, self._reads, self._writes = source, target, reads, writes
        self._slots: dict[Side, list[Slot]] = {}
        self._packed: dict[Side, np.ndarray] = {}

    def run(self, cuts: Sequence[tuple[int, int]], serve: Serve) -> None:
        """Run the call in the pieces ``cuts``; on return the streams of the arrays wait for what is under way."""
        begun = False
        with self._lane:
            try:
                self._reserve(cuts)
                begun = True
                self._order.follow(self._down, self._up)
                self._fetch(0, *cuts[0])
                for i, (begin, end) in enumerate(cuts):
                    if i + 1 < len(cuts):
                        self._fetch(i + 1, *cuts[i + 1])
                    self._settle(i)
                    serve(self._place(self._source, i, begin, end, self._reads),
                          self._place(self._target, i, begin, end, False), begin, end)  # fmt: skip
                    self._store(i, begin, end)
                if self._writes and self._slot(self._target, 0) is not None:
                    self._order.lead(self._up, self._deadline)
            except BaseException:
                self._end(lost=begun)
                raise
            self._end(lost=False)

    def _end(self, lost: bool) -> None:
        """Give the slots back; if they are ``lost``, something may still use them."""
        slots = [slot for both in self._slots.values() for slot in both]
        if lost:
            self._lane.lose(slots)
            return
        for slot in slots:
            self._lane.give(slot)

    def _reserve(self, cuts: Sequence[tuple[int, int]]) -> None:
        """Get memory for two pieces at a time, or for the only one."""
        for side in {self._source, self._target} - {None}:
            assert side is not None
            nbytes = max(side.nbytes(*cut) for cut in cuts)
            if side.on_device:
                slots = self._slots[side] = []
                for _ in range(min(2, len(cuts))):
                    slots.append(self._lane.take(nbytes))
            elif len(cuts) > 1 and side.blocks > 1:
                self._packed[side] = np.empty(nbytes, np.uint8)

    def _slot(self, side: Side | None, i: int) -> Slot | None:
        slots = self._slots.get(side) if side is not None else None
        return slots[i % len(slots)] if slots else None

    def _fetch(self, i: int, begin: int, end: int) -> None:
        """Begin to copy piece ``i`` of the input down, after the last copy from or to its slot."""
        slot = self._slot(self._source, i)
        if slot is None or not self._reads:
            return
        assert self._source is not None
        self._driver.order(self._down, slot.event)
        for address, place, nbytes in self._source.parts(begin, end):
            if nbytes:
                self._driver.to_host(slot.address + place, address, nbytes, self._down)
        self._driver.record(slot.event, self._down)

    def _settle(self, i: int) -> None:
        """Wait until the input of piece ``i`` is there, and until the slot of its result is free."""
        for slot in {self._slot(self._source, i), self._slot(self._target, i)} - {None}:
            assert slot is not None
            self._lane.wait(slot.event, self._deadline)

    def _place(self, side: Side | None, i: int, begin: int, end: int, filled: bool) -> int:
        """The address in host memory of piece ``i`` of a side; with ``filled`` its data are there."""
        slot = self._slot(side, i)
        if slot is not None or side is None:
            return slot.address if slot is not None else 0
        packed = self._packed.get(side)
        if packed is None:
            return side.address + begin
        if filled:
            for address, place, nbytes in side.parts(begin, end):
                packed[place : place + nbytes] = region(address, nbytes)
        return _core.address(packed)

    def _store(self, i: int, begin: int, end: int) -> None:
        """Begin to copy piece ``i`` of the result up."""
        side, slot = self._target, self._slot(self._target, i)
        if side is None or not self._writes:
            return
        packed = self._packed.get(side)
        for address, place, nbytes in side.parts(begin, end):
            if slot is not None and nbytes:
                self._driver.to_device(address, slot.address + place, nbytes, self._up)
            elif packed is not None:
                region(address, nbytes)[:] = packed[place : place + nbytes]
        if slot is not None:
            self._driver.record(slot.event, self._up)
