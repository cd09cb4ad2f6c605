"""Calls on arrays of GPUs whose ranks, all on one node, read each other's memory: no data pass through the host.

The ranks tell each other where their arrays are, by an all-gather of small records on the host. Then each rank has its
GPU copy and fold what it needs (:mod:`collectives.cuda.moves`). Before each round, its stream waits for events of all
ranks. An event can only be waited for once it has been recorded, so the ranks meet on the host between the two. A
kernel never waits for another rank: ranks that share a GPU take turns on it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import _cuda
from ..errors import CollectiveError, CollectiveMismatch
from .lanes import Lane
from .moves import ROUNDS, Move, rounds
from .opened import PLACE, Opened, nowhere
from .ordering import Order

__all__ = ["LEAST", "REASON", "Call", "Gather", "Peers", "Sync", "first_of", "why_not_here"]

#: Shorter vectors go through the host, which takes less time.
LEAST = 256 << 10
_EVENTS = 1 + max(ROUNDS.values())
REASON = np.dtype("S100")  # empty: there is none
HELLO = np.dtype([
    ("process", "u8"), ("memory", "V64"), ("events", "V64", _EVENTS), ("why", REASON), ("no_folds", REASON),
])  # fmt: skip
RECORD = np.dtype([("what", "S160"), ("cuts", "u4"), ("able", "?"), ("source", PLACE), ("target", PLACE)])
STATUS = np.dtype("u1")
#: All-gathers a record of one of these types: what all ranks gave, in rank order.
Gather = Callable[[np.ndarray, float | None], np.ndarray]


@dataclass
class Call:
    """A call that the ranks make together: ``what`` it is, for comparison; ``dtype`` and ``op`` are kernels' codes.

    ``cuts`` are the boundaries of the vector's blocks in bytes, and must be alike too. ``source`` and ``target`` are
    address and bytes of this rank's input and result. Without ``able`` this rank cannot make it in this way.
    """

    what: str
    base: str
    root: int
    cuts: Sequence[int]
    source: tuple[int, int]
    target: tuple[int, int]
    dtype: int
    op: int
    itemsize: int
    able: bool


def why_not_here() -> str | None:
    """Why this process lets all data on GPUs go through the host, or None: the environment may say so."""
    path = os.environ.get("COLLECTIVES_GPU_PATH") or "peers"
    if path == "peers":
        return None
    return f"COLLECTIVES_GPU_PATH is {path}" + ("" if path == "staging" else ", which is neither peers nor staging")


class Peers:
    """This rank's side of a communicator of ``size`` ranks on one node; making it is collective.

    ``why`` says why the ranks do not read each other's memory, ``no_folds`` why they have no reductions. Both are the
    same on all ranks. ``check`` raises an error if a rank has died, so that its GPU may never do its part.
    """

    def __init__(
        self, lane: Lane, rank: int, size: int, gather: Gather, check: Callable[[], None], deadline: float | None
    ):  # fmt: skip
        self.lane, self.rank, self.size, self._check = lane, rank, size, check
        self._stream = lane.down
        self._own: list[int] = []
        self._theirs: list[list[int]] = []  # for each event, those of all ranks
        self._left = False
        process = int.from_bytes(os.urandom(8), "little") or 1
        self._opened = Opened(lane, process, size, check)
        sync = Sync(gather, deadline)
        with lane, _trial(lane) as trial:
            hellos = sync(self._hello(process, trial))
            self.why = first_of(hellos["why"])
            self.no_folds = first_of(hellos["no_folds"])
            if self.why is None:
                self.why = first_of(sync(np.array([self._open_theirs(hellos)], REASON)))
        if self.why is not None:
            self.leave()
            self.free()

    def _hello(self, process: int, trial: int | str) -> np.ndarray:
        """What the others open: events, and memory by way of ``trial``; or why they cannot."""
        mine = np.zeros(1, HELLO)
        why = trial if isinstance(trial, str) else why_not_here()
        if not isinstance(trial, str) and why is None:
            try:
                mine["memory"] = np.void(self.lane.driver.export_memory(trial))
                for i in range(_EVENTS):
                    event, handle = self.lane.driver.shared_event()
                    self._own.append(event)
                    mine["events"][0, i] = np.void(handle)
            except (_cuda.CudaError, MemoryError) as e:
                why = str(e)
        kernels = self.lane.kernels()
        mine["process"], mine["why"] = process, (why or "").encode()[:100]
        mine["no_folds"] = (kernels if isinstance(kernels, str) else "").encode()[:100]
        return mine

    def _open_theirs(self, hellos: np.ndarray) -> bytes:
        """Open the events of the other ranks, and memory by way of trial; why it cannot be done."""
        try:
            for i in range(_EVENTS):
                self._theirs.append([])
                for r in range(self.size):
                    own = r == self.rank
                    event = self._own[i] if own else self.lane.driver.open_event(hellos["events"][r, i].tobytes())
                    self._theirs[i].append(event)
            for r in range(self.size):
                if r != self.rank:
                    self.lane.driver.close_memory(self.lane.driver.open_memory(hellos["memory"][r].tobytes()))
        except (_cuda.CudaError, MemoryError) as e:
            return str(e).encode()[:100]
        return b""

    @staticmethod
    def _status(good: bool) -> np.ndarray:
        return np.array([good], STATUS)

    def serves(self, base: str) -> bool:
        """Whether the ranks can make a call of a collective's kind."""
        return self.why is None and (self.no_folds is None or base not in ("allreduce", "reduce_scatter"))

    def run(self, call: Call, order: Order, gather: Gather, deadline: float | None) -> bool:
        """Make a call; on return the streams of its arrays wait for what is under way.

        Returns False, on all ranks, if the call cannot be made in this way. Nothing has been done then. Raises
        CollectiveMismatch if the ranks make different calls.
        """
        sync, self._stream = Sync(gather, deadline), self.lane.down
        with self.lane:
            if call.able:
                order.follow(self._stream)
                self.lane.driver.record(self._own[0], self._stream)
            records = sync(self._record(call))
            self._compare(call, records)
            if not records["able"].all():
                return False
            try:
                return self._move(call, order, records, sync, deadline)
            except BaseException:
                self.lane.abandon()
                raise

    def _record(self, call: Call) -> np.ndarray:
        mine = np.zeros(1, RECORD)
        able = call.able
        for side in ("source", "target"):
            address, nbytes = getattr(call, side)
            place = self._opened.place(address, nbytes) if able and nbytes else nowhere()
            able = able and (not nbytes or bool(place["number"])) and (call.op < 0 or address % call.itemsize == 0)
            mine[side] = place
        mine["what"], mine["able"] = call.what.encode()[:160], able
        mine["cuts"] = zlib.crc32(np.array(call.cuts).tobytes())
        return mine

    def _compare(self, call: Call, records: np.ndarray) -> None:
        told, own = records["what"], records[self.rank]
        for r in range(self.size):
            if told[r] != own["what"] or records["cuts"][r] != own["cuts"]:
                raise CollectiveMismatch(
                    f"the ranks make different calls on arrays of GPUs: rank {self.rank} {call.what}, "
                    f"rank {r} {told[r].decode(errors='replace')}"
                )

    def _move(self, call: Call, order: Order, records: np.ndarray, sync: Sync, deadline: float | None) -> bool:
        """Make a call that all ranks are able to make, unless a rank cannot open an allocation that is new."""
        new = self._opened.new([*records["source"], *records["target"]])
        if new and not sync(self._status(self._opened.open(new, deadline))).all():
            self._opened.refuse(new, deadline)
        sources, targets = ([self._address(place) for place in records[side]] for side in ("source", "target"))
        if None in sources or None in targets:
            return False
        moves = rounds(call.base, self.rank, call.root, call.cuts, sources, targets)  # type: ignore[arg-type]
        for i, part in enumerate(moves):
            self._await_all(i)
            for move in part:
                self._make(move, call)
            self.lane.driver.record(self._own[i + 1], self._stream)
            sync(self._status(True))
        self._await_all(len(moves))
        order.lead(self._stream, deadline, self._check)
        return True

    def _address(self, place: Any) -> int | None:
        return self._opened.address(place) if place["number"] else 0

    def _await_all(self, i: int) -> None:
        """Let the own stream wait for the event number ``i`` of all other ranks."""
        for r, event in enumerate(self._theirs[i]):
            if r != self.rank:
                self.lane.driver.order(self._stream, event)

    def _make(self, move: Move, call: Call) -> None:
        if len(move.sources) == 1:
            self.lane.driver.copy(move.target, move.sources[0], move.nbytes, self._stream)
        else:
            kernels = self.lane.kernels()
            assert isinstance(kernels, _cuda.Kernels)
            n = move.nbytes // call.itemsize
            kernels.fold(call.dtype, call.op, move.target, move.sources, n, self._stream)

    def leave(self) -> None:
        """Close what belongs to other ranks; a local call, after the last call of the communicator."""
        if self._left:
            return
        self._left = True
        if self.lane.abandoned:
            return
        with contextlib.suppress(_cuda.CudaError, MemoryError, CollectiveError), self.lane:
            self._opened.close()
            self.lane.driver.finish(self._stream)  # which may wait for the other ranks' events
            for event in itertools.chain(*self._theirs):
                if event not in self._own:
                    self.lane.driver.free_event(event)
        self._theirs = []

    def free(self) -> None:
        """Free the own events, once all ranks have left."""
        if not self.lane.abandoned:
            with contextlib.suppress(_cuda.CudaError, MemoryError), self.lane:
                for event in self._own:
                    self.lane.driver.free_event(event)
        self._own = []


@contextlib.contextmanager
def _trial(lane: Lane) -> Iterator[int | str]:
    """Memory for the block, to see whether others can open it; or why there is none."""
    try:
        address = lane.take_scratch(1)
    except (_cuda.CudaError, MemoryError) as e:
        yield str(e)
    else:
        yield address
        lane.give_scratch(1, address)


def first_of(reasons: np.ndarray) -> str | None:
    """The reason of the first rank that has one, in the same words on all ranks; None if no rank has."""
    r = int(np.argmax(reasons != b""))
    return None if reasons[r] == b"" else f"rank {r}: {reasons[r].decode(errors='replace')}"


class Sync:
    """The meetings of a call's ranks on the host, until the ``deadline``, a time of the monotonic clock."""

    def __init__(self, gather: Gather, deadline: float | None):
        self._gather, self._deadline = gather, deadline

    def left(self) -> float | None:
        """Seconds until the deadline."""
        return None if self._deadline is None else max(1e-3, self._deadline - time.monotonic())

    def __call__(self, mine: np.ndarray) -> np.ndarray:
        """What all ranks gave, in rank order."""
        return self._gather(mine, self.left())
