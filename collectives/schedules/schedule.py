"""Schedules: what each rank sends, receives, reduces and copies, in rounds.

An algorithm is a generator of rounds, ``(rank, size, **params)``. Each round is a list of steps on one vector that is
cut into blocks; algorithms know neither its length nor datatype nor address. ``rank`` is an int or an integer array of
ranks: then every field of a step may be an array, ``when`` masks the ranks that take part, and one call gives a round
of all ranks. If a rank has as many steps or rounds as there are ranks, they are written as a :class:`Series`.
:func:`collectives.schedules.build.build` turns the rounds of one rank into the records that the executors read.

Within a round, all messages proceed together and read what the vector held when the round began. The local steps
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
    """One step as algorithms write it; fields as in :data:`STEP`, each an int or an array with one entry per rank."""

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
    """The steps ``steps(i)`` for each i of ``numbers``, in order: steps that differ by a number only.

    ``steps`` accepts one number or an array of numbers, so that one call makes the thousands of steps of a linear
    algorithm. As an item of a round, a series stands for its steps; in place of a round, for one round per number.
    """

    numbers: np.ndarray
    steps: Callable[[Ints], list[Step]]


def each(numbers: range, steps: Callable[[Ints], list[Step]]) -> Series:
    """A :class:`Series` of ``steps(i)`` for each number: steps of one round, or in place of a round one round each."""
    return Series(np.arange(numbers.start, numbers.stop, numbers.step), steps)


#: What a generator yields: the steps of one round, or a series of rounds.
Round = Sequence[Step | Series] | Series


def mapped(steps: Round, change: Callable[[Step], Step]) -> Round:
    """A round, or a series of rounds, with ``change`` applied to every step."""

    def changed(series: Series) -> Series:
        return Series(series.numbers, lambda i: [change(step) for step in series.steps(i)])

    if isinstance(steps, Series):
        return changed(steps)
    return [changed(step) if isinstance(step, Series) else change(step) for step in steps]


def send(peer: Ints, block: Ints = 0, nblocks: Ints = ALL, *, src: int = VECTOR, when: Any = True) -> Step:
    """Send blocks ``[block, block + nblocks)`` of ``src`` to ``peer``."""
    return Step(Kind.SEND, peer, block, nblocks, left=src, when=when)


def recv(peer: Ints, block: Ints = 0, nblocks: Ints = ALL, *, dst: int = VECTOR, when: Any = True) -> Step:
    """Receive blocks ``[block, block + nblocks)`` from ``peer`` into ``dst``."""
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
    """Receive blocks from ``peer``, reduce them with the same blocks of ``src`` and store the result in ``dst``.

    ``received_left``: whether the received data are the left operand, which they are if they come from lower ranks.
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
    """Two steps for one whose blocks may run past the last block, ``size - 1``: up to the end, and from block 0 on.

    Sender and receiver name the same blocks, so both cut at the same place and the two messages match in order.
    """
    block = np.mod(step.block, size)
    first = np.minimum(step.nblocks, size - block)
    rest = step.nblocks - first
    return [replace(step, block=block, nblocks=first), replace(step, block=0 * block, nblocks=rest)]


class Rounds:
    """A generator of rounds that can be joined with another (``+``) and run on a subset of the ranks (``.on``)."""

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
        """These rounds among ``ranks`` only: the i-th of them acts as rank i; all other ranks have no steps."""
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

    ``steps`` is a read-only array of :data:`STEP`, in order of rounds; ``nblocks`` is the number of blocks of the
    vector, ``scratch`` the number of scratch vectors. ``root`` is 0 if the collective has none.
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
        """The blocks that the rank's send buffer holds: ALL, NONE, or the number of its one block."""
        return SPECS[self.collective].held(self.rank, self.root)

    @property
    def vector_block(self) -> int:
        """The blocks that the rank's receive buffer holds: ALL, NONE, or the number of its one block."""
        return SPECS[self.collective].owned(self.rank, self.root)

    @property
    def blockwise(self) -> bool:
        """Whether block i belongs to rank i, so that segments cut each block rather than the vector."""
        return SPECS[self.collective].blockwise

    def rounds(self) -> Iterator[np.ndarray]:
        """The steps of each round in turn; rounds without messages are included."""
        if len(self.steps):
            cuts = np.flatnonzero(np.diff(self.steps["round"])) + 1
            yield from np.split(self.steps, cuts)
