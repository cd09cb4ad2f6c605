"""Schedules: what each rank sends, receives, reduces and copies, in rounds.

An algorithm is a generator of rounds, ``(rank, size, **params)``: each round is a list of steps, written on one
vector cut into blocks, without its length, datatype or address. ``rank`` is an int or an integer array of ranks (every
field of a step may then be an array, and ``when`` masks the ranks that take part), so that one call gives a round of
all ranks. Steps, or rounds, of which a rank has as many as there are ranks are written as a :class:`Series`.
:func:`build` turns the rounds of one rank into the record array that the executors read.

Within a round, all messages proceed together and read what the vector held when the round began; the local steps
(reductions, copies) follow, in the order written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .spec import ALL, NONE, SPECS
from .steps import INPUT, RECEIVED, SCRATCH, STEP, VECTOR, Kind

__all__ = [
    "ALL", "INPUT", "NONE", "RECEIVED", "SCRATCH", "STEP", "VECTOR", "Kind", "Rounds", "Schedule", "Series", "Step",
    "copy", "each", "mapped", "recv", "recv_reduce", "reduce", "send", "wrapped",
]  # fmt: skip

Ints = Any  # int or integer array: the fields of a step before build()


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


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Steps that differ by a number only: those of ``steps(i)`` for each i of ``numbers``, in order.

    ``steps`` works on one number and on an array of them, so that one call makes the thousands of steps that a rank of
    a linear algorithm has. In a round it stands for its steps; in place of rounds, for a round for each number.
    """

    numbers: np.ndarray
    steps: Callable[[Ints], list[Step]]


def each(numbers: range, steps: Callable[[Ints], list[Step]]) -> Series:
    """``steps(i)`` for each number: within a round its steps, in place of rounds a round for each."""
    return Series(np.arange(numbers.start, numbers.stop, numbers.step), steps)


#: What a generator yields: the steps of a round, or a series in place of rounds.
Round = Sequence[Step | Series] | Series


def mapped(steps: Round, change: Callable[[Step], Step]) -> Round:
    """A round, or a series of them, with every step changed alike."""

    def changed(series: Series) -> Series:
        return Series(series.numbers, lambda i: [change(step) for step in series.steps(i)])

    if isinstance(steps, Series):
        return changed(steps)
    return [changed(step) if isinstance(step, Series) else change(step) for step in steps]


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


def wrapped(step: Step, size: int) -> list[Step]:
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

            def renamed(s: Step) -> Step:
                peer = np.where(np.asarray(s.peer) < 0, NONE, members[np.mod(s.peer, len(members))])
                return replace(s, peer=peer, when=np.logical_and(s.when, member))

            for steps in self(np.maximum(position, 0), len(members), **params):
                yield mapped(steps, renamed)

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
