"""Schedules: what each rank sends, receives, reduces and copies, in rounds.

An algorithm is a generator of rounds, ``(rank, size, **params)``: each round is a list of steps, written on one
vector cut into blocks, without its length, datatype or address. ``rank`` is an int or an integer array of ranks (every
field of a step may then be an array, and ``when`` masks the ranks that take part), so that one call gives a round of
all ranks. :func:`build` turns the rounds of one rank into the record array that the executors read.

Within a round, all messages proceed together and read what the vector held when the round began; the local steps
(reductions, copies) follow, in the order written.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .spec import ALL, NONE, SPECS

if TYPE_CHECKING:
    from .registry import ScheduleAlgorithm

__all__ = [
    "ALL", "INPUT", "NONE", "RECEIVED", "SCRATCH", "STEP", "VECTOR", "Kind", "Rounds", "Schedule", "Step",
    "all_ranks", "assemble", "build", "copy", "recv", "recv_reduce", "reduce", "send", "wrapped",
]  # fmt: skip

Ints = Any  # int or integer array: the fields of a step before build()


class Kind(enum.IntEnum):
    """What a step does; csrc/schedule.h has the same numbers."""

    SEND = 0
    RECV = 1
    RECV_REDUCE = 2
    REDUCE = 3
    COPY = 4


RECEIVED = -1  # operand of a RECV_REDUCE: what arrives
INPUT = 0  # the caller's send buffer, never written
VECTOR = 1  # the vector; algorithms read and write this one, build() redirects first reads to INPUT
SCRATCH = 2  # first of the schedule's own vectors: SCRATCH, SCRATCH + 1, ...

#: One step as C reads it (csrc/schedule.h): 10 32-bit integers.
STEP = np.dtype(
    [(name, np.int32) for name in
     ("kind", "round", "peer", "block", "nblocks", "dst", "left", "right", "src_block", "reserved")]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One step as algorithms write it; fields as in :data:`STEP`, ints or arrays over the ranks asked for."""

    kind: Kind
    peer: Ints = NONE
    block: Ints = 0
    nblocks: Ints = ALL
    dst: Ints = NONE
    left: Ints = NONE
    right: Ints = NONE
    src_block: Ints = NONE
    when: Any = True


Round = list[Step]


def send(peer: Ints, block: Ints = 0, nblocks: Ints = ALL, *, src: int = VECTOR, when: Any = True) -> Step:
    """Send blocks ``[block, block + nblocks)`` of ``src`` to ``peer``."""
    return Step(Kind.SEND, peer, block, nblocks, left=src, when=when)


def recv(peer: Ints, block: Ints = 0, nblocks: Ints = ALL, *, dst: int = VECTOR, when: Any = True) -> Step:
    """Receive blocks ``[block, block + nblocks)`` of ``dst`` from ``peer``."""
    return Step(Kind.RECV, peer, block, nblocks, dst=dst, when=when)


def recv_reduce(
    peer: Ints,
    block: Ints = 0,
    nblocks: Ints = ALL,
    *,
    received_left: Any,
    src: int = VECTOR,
    dst: int = VECTOR,
    when: Any = True,
) -> Step:
    """Receive blocks from ``peer``, reduce them with those of ``src`` and put the result into ``dst``.

    ``received_left`` says which operand the received data is: left where they stem from lower ranks.
    """
    left = np.where(received_left, RECEIVED, src)
    right = np.where(received_left, src, RECEIVED)
    return Step(Kind.RECV_REDUCE, peer, block, nblocks, dst=dst, left=left, right=right, when=when)


def reduce(
    left: Ints, right: Ints, block: Ints = 0, nblocks: Ints = ALL, *, dst: Ints = VECTOR, when: Any = True
) -> Step:
    """``dst = left op right`` on blocks ``[block, block + nblocks)`` of three buffers."""
    return Step(Kind.REDUCE, NONE, block, nblocks, dst=dst, left=left, right=right, when=when)


def copy(
    src: Ints, dst: Ints, block: Ints = 0, nblocks: Ints = ALL, *, src_block: Ints | None = None, when: Any = True
) -> Step:
    """Copy blocks of ``src`` from ``src_block`` (default ``block``) to ``block`` of ``dst``."""
    source = block if src_block is None else src_block
    return Step(Kind.COPY, NONE, block, nblocks, dst=dst, left=src, src_block=source, when=when)


def wrapped(step: Step, size: int) -> Round:
    """Cut a step whose blocks run past the last block, ``size - 1``, into two: up to the end, and from block 0.

    Sender and receiver name the same blocks, so both cut alike and the pieces match in order.
    """
    block = np.mod(step.block, size)
    first = np.minimum(step.nblocks, size - block)
    rest = step.nblocks - first
    return [replace(step, block=block, nblocks=first), replace(step, block=0 * block, nblocks=rest)]


class Rounds:
    """A generator of rounds that can be joined (``+``) and put on a subset of the ranks (``.on``)."""

    def __init__(self, function: Callable[..., Iterator[Round]]):
        self.function = function
        self.__name__ = getattr(function, "__name__", "rounds")
        self.__doc__ = function.__doc__

    def __call__(self, rank: Ints, size: int, **params: Any) -> Iterator[Round]:
        """The rounds of one rank, or of an array of ranks."""
        return self.function(rank, size, **params)

    def __add__(self, other: Rounds) -> Rounds:
        def joined(rank: Ints, size: int, **params: Any) -> Iterator[Round]:
            yield from self(rank, size, **params)
            yield from other(rank, size, **params)

        return Rounds(joined)

    def on(self, ranks: Iterable[int]) -> Rounds:
        """The same rounds among ``ranks`` only, in the order given; the other ranks rest meanwhile."""
        members = np.asarray(list(ranks), dtype=np.int64)

        def inside(rank: Ints, size: int, **params: Any) -> Iterator[Round]:
            index = np.full(size, -1, dtype=np.int64)
            index[members] = np.arange(len(members))
            position = index[rank]
            member = position >= 0
            for steps in self(np.maximum(position, 0), len(members), **params):
                yield [
                    replace(
                        s,
                        peer=np.where(np.asarray(s.peer) < 0, NONE, members[np.mod(s.peer, len(members))]),
                        when=np.logical_and(s.when, member),
                    )
                    for s in steps
                ]

        return Rounds(inside)


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """All steps of one rank.

    ``steps`` is a read-only array of :data:`STEP`, in order of rounds; ``nblocks`` cuts the vector, ``scratch`` counts
    the extra vectors it needs. ``root`` is 0 where there is none.
    """

    name: str
    rank: int
    size: int
    nblocks: int
    scratch: int
    steps: np.ndarray
    collective: str = "allreduce"
    root: int = 0

    @property
    def input_block(self) -> int:
        """What the rank's send buffer holds: ALL, NONE, or the number of its one block."""
        return SPECS[self.collective].held(self.rank, self.root)

    @property
    def vector_block(self) -> int:
        """What the rank's receive buffer holds, likewise."""
        return SPECS[self.collective].owned(self.rank, self.root)

    @property
    def blockwise(self) -> bool:
        """Whether block i is rank i's, so that segments cut each block rather than the vector."""
        return SPECS[self.collective].blockwise

    def rounds(self) -> Iterator[np.ndarray]:
        """The steps of each round in turn, local-only rounds included."""
        if len(self.steps):
            cuts = np.flatnonzero(np.diff(self.steps["round"])) + 1
            yield from np.split(self.steps, cuts)


def build(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> Schedule:
    """The schedule of one rank; raises ValueError for a rank or root outside ``range(size)``."""
    for what, number in (("rank", rank), ("root", root)):
        if not 0 <= number < size:
            raise ValueError(f"{what} {number} is not in a communicator of size {size}")
    rounds = algorithm.rounds_of(rank, size, root)
    return assemble(algorithm.name, rank, size, algorithm.blocks(size), rounds, algorithm.collective, root)


def all_ranks(algorithm: ScheduleAlgorithm, size: int, root: int = 0) -> Iterator[Round]:
    """The rounds of every rank at once, as written: each field of a step is an array over the ranks.

    ``when`` is False where a rank has no such step or an empty one; ``nblocks`` is never ALL.
    """
    total = algorithm.blocks(size)
    for steps in algorithm.rounds_of(np.arange(size), size, root):
        whole = []
        for step in steps:
            nblocks = np.where(np.asarray(step.nblocks) == ALL, total, step.nblocks)
            fields = (step.peer, step.block, nblocks, step.dst, step.left, step.right, step.src_block)
            spread = [np.broadcast_to(field, size) for field in (*fields, step.when)]
            spread[-1] = spread[-1] & (nblocks > 0)
            whole.append(Step(step.kind, *spread))
        yield whole


def assemble(
    name: str,
    rank: int,
    size: int,
    nblocks: int,
    rounds: Iterable[Round],
    collective: str = "allreduce",
    root: int = 0,
) -> Schedule:
    """Fix the steps of one rank: masks applied, first reads taken from INPUT, results where the caller wants them.

    What the rounds call VECTOR holds all blocks; where the caller's memory does not, a scratch vector stands for it.
    """
    spec = SPECS[collective]
    builder = _Builder(nblocks, spec.held(rank, root))
    for steps in rounds:
        builder.add_round([_scalar(step, nblocks) for step in steps])
    owned = spec.owned(rank, root)
    builder.finish(owned)
    table = np.array(builder.steps, dtype=STEP)
    if owned != ALL:
        table = _without_vector(table, owned)
    table.flags.writeable = False
    used = [int(table[name].max(initial=VECTOR)) for name in ("dst", "left", "right")]
    return Schedule(name, rank, size, nblocks, max(used) - VECTOR, table, collective, root)


def _scalar(step: Step, nblocks: int) -> Step | None:
    """The step with plain ints, or None where this rank takes no part in it."""
    count = int(step.nblocks)
    count = nblocks if count == ALL else count
    if not bool(step.when) or count == 0:
        return None
    block = int(step.block)
    if block < 0 or count < 0 or block + count > nblocks:
        raise ValueError(f"{step.kind.name} of blocks {block}..{block + count - 1} in a vector of {nblocks} blocks")
    return Step(
        step.kind, int(step.peer), block, count, int(step.dst), int(step.left), int(step.right), int(step.src_block)
    )


class _Builder:
    """Collects rounds, and sends the first read of every block to INPUT, so that nothing is copied beforehand."""

    def __init__(self, nblocks: int, held: int):
        self.steps: list[tuple[int, ...]] = []
        self.round = 0
        self.fresh = np.full(nblocks, held == ALL)  # blocks that INPUT holds, and VECTOR does not yet
        if held >= 0:
            self.fresh[held] = True

    def add_round(self, steps: Iterable[Step | None]) -> None:
        """Sends read what the round found; local steps, reductions of arrivals among them, follow the messages."""
        ready = [s for s in steps if s is not None]
        for i, s in enumerate(ready):
            if s.kind is Kind.SEND:
                ready[i] = self._redirect(s)
        for s in ready:
            if s.kind is Kind.RECV:
                self._written(s)
        for i, s in enumerate(ready):
            if s.kind >= Kind.RECV_REDUCE:
                ready[i] = self._redirect(s)
                self._written(s)
        self._emit(ready)

    def finish(self, owned: int) -> None:
        """Blocks of the result that nothing wrote are the caller's own."""
        if owned != NONE:
            first, count = (0, len(self.fresh)) if owned == ALL else (owned, 1)
            self._emit(self._copies(first, count))

    def _redirect(self, step: Step) -> Step:
        start = step.src_block if step.kind is Kind.COPY else step.block
        reads = [name for name in ("left", "right") if getattr(step, name) == VECTOR]
        if not reads or self._source(start, step.nblocks) == VECTOR:
            return step
        sources: dict[str, Any] = dict.fromkeys(reads, INPUT)
        return replace(step, **sources)

    def _source(self, block: int, nblocks: int) -> int:
        fresh = self.fresh[block : block + nblocks]
        if fresh.all():
            return INPUT
        if fresh.any():
            self._emit(self._copies(block, nblocks))
            fresh[:] = False
        return VECTOR

    def _copies(self, block: int, nblocks: int) -> list[Step]:
        """Copies of the runs of blocks in the range that only INPUT holds."""
        fresh = np.concatenate(([False], self.fresh[block : block + nblocks], [False]))
        edges = np.flatnonzero(np.diff(fresh.astype(np.int8)))
        return [
            Step(Kind.COPY, NONE, block + int(a), int(b - a), dst=VECTOR, left=INPUT, src_block=block + int(a))
            for a, b in edges.reshape(-1, 2)
        ]

    def _written(self, step: Step) -> None:
        if step.dst == VECTOR:
            self.fresh[step.block : step.block + step.nblocks] = False

    def _emit(self, steps: list[Step]) -> None:
        for s in steps:
            self.steps.append(
                (int(s.kind), self.round, s.peer, s.block, s.nblocks, s.dst, s.left, s.right, s.src_block, 0)
            )
        self.round += bool(steps)


def _without_vector(table: np.ndarray, owned: int) -> np.ndarray:
    """The steps with VECTOR made a scratch vector, but for the last write of the block ``owned``.

    Where that write is not of this block alone, or something reads the block afterwards, a copy is added instead. Where
    no other block is touched at all, nothing changes.
    """
    old = table.copy()
    first = np.where(old["kind"] == Kind.COPY, old["src_block"], old["block"])
    names = {"dst": old["block"], "left": first, "right": first}
    touched = {name: old[name] == VECTOR for name in names}
    if all((names[name][t] == owned).all() and (old["nblocks"][t] == 1).all() for name, t in touched.items()):
        return table
    stand_in = max(int(old[name].max(initial=VECTOR)) for name in names) + 1
    for name, t in touched.items():
        table[name][t] = stand_in
    if owned == NONE:
        return table
    meets = (old["block"] <= owned) & (owned < old["block"] + old["nblocks"])
    writes = np.flatnonzero(meets & touched["dst"])
    if not len(writes):
        return table
    last = int(writes[-1])
    reads = (first <= owned) & (owned < first + old["nblocks"]) & (touched["left"] | touched["right"])
    if old["kind"][last] == Kind.RECV:  # all local steps of its round come after it
        later = (old["round"] > old["round"][last]) | (
            (old["round"] == old["round"][last]) & (old["kind"] >= Kind.RECV_REDUCE)
        )
    else:  # the sends of its round come before it
        later = (np.arange(len(old)) > last) & ((old["round"] > old["round"][last]) | (old["kind"] != Kind.SEND))
    if old["nblocks"][last] == 1 and not (reads & later).any():
        table["dst"][last] = VECTOR
        return table
    end = (Kind.COPY, old["round"][-1] + 1, NONE, owned, 1, VECTOR, stand_in, NONE, owned, 0)
    return np.append(table, np.array([end], dtype=STEP))
