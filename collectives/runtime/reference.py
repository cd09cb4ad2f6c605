"""The executor in Python: any schedule, round by round, by mpi4py's point-to-point. Tests compare C's with it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ..arguments.packing import region
from ..core import _core
from ..schedules.schedule import INPUT, RECEIVED, SCRATCH, VECTOR, Kind, Schedule

if TYPE_CHECKING:
    from ..arguments.shape import Shape
    from ..arguments.signature import Call

__all__ = ["HostSpace", "Message", "Space", "Walk", "execute", "run"]


class Message(NamedTuple):
    """A send or receive that is posted."""

    request: Any
    peer: int
    comes: bool  # True for a receive, False for a send


Messages = list[Message]
Reduction = Any  # callable (dst, left, right) on uint8 arrays of one length


class Space(Protocol):
    """Memory in which a run is: its arrays have lengths in bytes, slices, and copies by ``a[:] = b``."""

    def region(self, address: int, nbytes: int) -> Any:
        """The array of ``nbytes`` bytes at ``address``."""

    def empty(self, nbytes: int) -> Any:
        """A new array."""

    def reduce(self, dtype: int, op: int, dst: Any, left: Any, right: Any) -> None:
        """dst = left op right, element by element; a mean is a sum here."""

    def scale(self, dtype: int, array: Any, divisor: int) -> None:
        """Divide the elements of an array."""


class HostSpace:
    """The processor's memory, with NumPy's arrays of uint8."""

    region = staticmethod(region)

    @staticmethod
    def empty(nbytes: int) -> np.ndarray:
        """A new array."""
        return np.empty(nbytes, np.uint8)

    @staticmethod
    def reduce(dtype: int, op: int, dst: Any, left: Any, right: Any) -> None:
        """dst = left op right, element by element; a mean is a sum here."""
        _core.reduce2(dtype, op, dst, left, right)

    @staticmethod
    def scale(dtype: int, array: Any, divisor: int) -> None:
        """Divide the elements of an array."""
        _core.scale(dtype, array, array, divisor)


HOST = HostSpace()


def run(
    schedule: Schedule, comm: Any, shape: Shape, source: int, target: int, segments: int, tags: Sequence[int],
    space: Space = HOST,
) -> Iterator[Messages]:  # fmt: skip
    """Execute a call of ``shape`` segment by segment; yield messages as :func:`execute` does.

    ``source`` and ``target`` are addresses in ``space``, 0 for none.
    """
    size, dtype, op = shape.itemsize, shape.dtype, shape.op

    def reduction(dst: Any, left: Any, right: Any) -> None:
        space.reduce(dtype, op, dst, left, right)

    cuts = list(shape.cuts or _core.partition(shape.elements, schedule.nblocks))
    input_cuts = list(shape.input_cuts or cuts)
    send = _memory(source, input_cuts, schedule.input_block, size, space)
    recv = _memory(target, cuts, schedule.vector_block, size, space)
    if schedule.blockwise:  # a segment is a part of every block then, so segments make no difference here
        yield from execute(schedule, comm, send, recv, size, reduction, tags[0], cuts, input_cuts, space)
    else:
        bounds = _core.partition(shape.elements, segments)
        for segment, (a, b) in enumerate(itertools.pairwise(bounds)):
            here, tag = slice(a * size, b * size), tags[segment % len(tags)]
            own = _core.partition(b - a, schedule.nblocks)
            yield from execute(schedule, comm, send[here], recv[here], size, reduction, tag, own, space=space)
    if op is not None and _core.OPS[op] == "avg":
        space.scale(dtype, recv, schedule.size)


def _memory(address: int, cuts: list[int], block: int, size: int, space: Space) -> Any:
    """The memory at ``address`` as an array: one ``block``, or all if that is negative; empty for address 0."""
    elements = cuts[block + 1] - cuts[block] if block >= 0 else cuts[-1]
    return space.region(address, elements * size if address else 0)


def execute(
    schedule: Schedule,
    comm: Any,
    send: Any,
    recv: Any,
    itemsize: int,
    op: Reduction,
    tag: int,
    cuts: Sequence[int] | None = None,
    input_cuts: Sequence[int] | None = None,
    space: Space = HOST,
) -> Iterator[Messages]:
    """Execute one rank's schedule: a generator that yields the messages of each round.

    The caller resumes the generator when these messages are complete. ``send`` and ``recv`` are arrays in ``space``,
    with the same memory for an in-place call: the whole vector, the rank's own block, or nothing. ``cuts`` are the
    boundaries of the blocks in elements, ``input_cuts`` those of ``send``; by default ``recv`` is the whole vector, cut
    by ``_core.partition``. ``op(dst, left, right)`` reduces such arrays. ``comm`` has mpi4py's ``Isend`` and ``Irecv``.
    """
    if cuts is None:
        cuts = _core.partition(len(recv) // itemsize, schedule.nblocks)
    bounds = [itemsize * i for i in cuts]
    inward = bounds if input_cuts is None else [itemsize * i for i in input_cuts]
    memory = _Memory(schedule, send, recv, bounds, inward, space)
    for steps in schedule.rounds():
        messages, arrived = _post(steps, memory, comm, tag, space)
        yield messages
        _compute(steps, memory, arrived, op)


class _Memory:
    """The buffers of a run, and where the blocks lie in them."""

    def __init__(
        self, schedule: Schedule, send: Any, recv: Any, bounds: list[int], input_bounds: list[int], space: Space
    ):
        self._bounds, self._input_bounds = bounds, input_bounds
        self._buffers = {INPUT: send, VECTOR: recv}
        self._buffers.update({SCRATCH + i: space.empty(bounds[-1]) for i in range(schedule.scratch)})
        self._origin = {
            INPUT: input_bounds[max(schedule.input_block, 0)], VECTOR: bounds[max(schedule.vector_block, 0)]
        }  # fmt: skip

    def part(self, buffer: int, block: int, nblocks: int) -> Any:
        """The bytes of ``nblocks`` blocks of a buffer, from ``block`` on."""
        at = self._input_bounds if buffer == INPUT else self._bounds
        first = self._origin.get(buffer, 0)
        return self._buffers[buffer][at[block] - first : at[block + nblocks] - first]


def _post(
    steps: np.ndarray, memory: _Memory, comm: Any, tag: int, space: Space
) -> tuple[Messages, dict[int, Any]]:  # fmt: skip
    """Start a round's messages; returns them and, by step, the memory of what is reduced when it has arrived."""
    messages, arrived = [], {}
    for i, s in enumerate(steps):
        if s["kind"] > Kind.RECV_REDUCE:
            continue
        buffer = s["left"] if s["kind"] == Kind.SEND else s["dst"]
        data = memory.part(int(buffer), s["block"], s["nblocks"])
        if s["kind"] == Kind.RECV_REDUCE:
            data = arrived[i] = space.empty(len(data))
        if len(data):
            comes, peer = s["kind"] != Kind.SEND, int(s["peer"])
            messages.append(Message((comm.Irecv if comes else comm.Isend)(data, peer, tag), peer, comes))
    return messages, arrived


def _compute(steps: np.ndarray, memory: _Memory, arrived: dict[int, Any], op: Reduction) -> None:
    """Run a round's copies and reductions; its messages are complete."""
    for i, s in enumerate(steps):
        if s["kind"] < Kind.RECV_REDUCE:
            continue
        dst = memory.part(int(s["dst"]), s["block"], s["nblocks"])
        if s["kind"] == Kind.COPY:
            dst[:] = memory.part(int(s["left"]), s["src_block"], s["nblocks"])
            continue
        left, right = (
            arrived[i] if s[side] == RECEIVED else memory.part(int(s[side]), s["block"], s["nblocks"])
            for side in ("left", "right")
        )
        if len(dst):
            op(dst, left, right)


def _comes(request: Any) -> bool:
    """Whether the message of a receive that is given up may still come; if MPI has an error for it, none does."""
    try:
        return not request.Test()
    except Exception:  # MPI's, for a sender that has died; what the program is to see is why the run has ended
        return False


class Walk:
    """A run of this executor that can be waited for; it serves as its own plan."""

    def __init__(self, rounds: Iterator[Messages], call: Call, nbytes: int, buffers: Any):
        self._rounds, self._call, self._nbytes = rounds, call, nbytes
        self._pending: Messages = []
        self._withdrawn = False
        self.buffers = buffers
        self.number = call.number

    @property
    def plan(self) -> Walk:
        """The object that knows which ranks the run waits for: the run itself."""
        return self

    def waiting(self) -> list[int]:
        """Ranks of the sends and receives that are not complete."""
        return sorted({message.peer for message in self._pending})

    def withdraw(self) -> int:
        """Cancel the receives, once; return how many of them are not complete yet."""
        coming = [message.request for message in self._pending if message.comes]
        if not self._withdrawn:
            self._withdrawn = True
            for request in coming:
                if request:  # null if it has ended, and a signal handler runs before _pending is updated
                    request.Cancel()
        return sum(map(_comes, coming))

    def call(self) -> Call:
        """The call's number, collective, type signature, op and root."""
        return self._call

    def __str__(self) -> str:
        call = self._call
        return f"{call.collective} ({call.algorithm}, {self._nbytes} bytes)" if call.algorithm else call.collective

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Progress the run for up to ``limit`` ns; return whether it has ended."""
        end = time.monotonic_ns() + limit
        patience = _core.Patience()
        while True:
            self._pending = [message for message in self._pending if not message.request.Test()]
            if not self._pending:
                following = next(self._rounds, None)
                if following is None:
                    return True
                self._pending = following
            elif time.monotonic_ns() >= end:
                return False
            else:
                (os.sched_yield if yield_at_once else patience.give_way)()
