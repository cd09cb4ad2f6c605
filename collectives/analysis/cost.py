"""What algorithms cost: rounds and bytes, counted or as promised, and a time estimate.

Counting takes the rounds of all ranks at once from the generator (no schedule is built), so that thousands of ranks
cost little more than ten. Both sides of a message must be in the same round of the generator, as in every algorithm
here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..schedules.build import all_ranks
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Kind, Step

__all__ = ["Machine", "Promise", "Traffic", "count", "promised", "seconds"]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What each rank does, in blocks of ``1/nblocks`` of the vector; arrays over the ranks.

    ``rounds`` is the longest chain of rounds with messages, ``messages`` the number each rank sends.
    """

    nblocks: int
    rounds: int
    messages: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray

    def of(self, nbytes: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes sent, received and reduced by each rank for a vector of ``nbytes``.

        Exact where the blocks divide the vector evenly, else to within one element a block.
        """
        each = nbytes / self.nblocks
        return self.sent * each, self.received * each, self.reduced * each


class Promise(NamedTuple):
    """Rounds, and the bytes that the busiest rank sends, in closed form."""

    rounds: int
    sent: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The linear model, in seconds: ``alpha`` a round, ``beta`` a byte sent or received, ``gamma`` a byte reduced.

    ``overhead`` is what each further message of a round costs a rank: 0 where messages overlap fully, ``alpha`` where
    they are handled one after the other.
    """

    alpha: float
    beta: float
    gamma: float = 0.0
    overhead: float = 0.0


def promised(algorithm: ScheduleAlgorithm, size: int, nbytes: float) -> Promise:
    """Rounds and bytes for a vector of ``nbytes``, as the algorithm declares them (verification counts them again)."""
    return Promise(algorithm.rounds(size), algorithm.sent(size) * nbytes / algorithm.blocks(size))


def count(algorithm: ScheduleAlgorithm, size: int) -> Traffic:
    """Count what each rank sends, receives and reduces."""
    total = np.zeros((4, size), dtype=np.int64)
    for load in _loads(algorithm, size):
        total += (load.messages, load.sent, load.received, load.reduced)
    rounds = round(seconds(algorithm, size, 0, Machine(alpha=1, beta=0)))
    return Traffic(algorithm.blocks(size), rounds, *total)


def seconds(algorithm: ScheduleAlgorithm, size: int, nbytes: float, machine: Machine) -> float:
    """Estimated time of one collective on a vector of ``nbytes``, one segment, rounds strictly after each other.

    A rank's round begins when it and all its partners have ended their earlier rounds, and takes ``alpha``
    and the overhead of further messages, plus ``beta`` for the bytes, plus ``gamma`` for the bytes reduced. Ranks send
    and receive at the same time: of messages and bytes, those of the busier direction count. Copies on a rank are free.
    """
    each = nbytes / algorithm.blocks(size)
    clock = np.zeros(size)
    for load in _loads(algorithm, size):
        begin = clock.copy()
        for source, target in load.edges:
            np.maximum.at(begin, source, clock[target])
            np.maximum.at(begin, target, clock[source])
        volume = np.maximum(load.sent, load.received) * machine.beta + load.reduced * machine.gamma
        messages = np.maximum(load.messages, load.arrivals)
        setup = machine.alpha + machine.overhead * (messages - 1)
        clock = np.where(messages > 0, begin + setup, clock) + volume * each
    return float(clock.max())


class _Load(NamedTuple):
    """One round: per rank the messages sent and received and the blocks moved; and the pairs (sources, targets)."""

    messages: np.ndarray
    arrivals: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray
    edges: list[tuple[np.ndarray, np.ndarray]]


def _loads(algorithm: ScheduleAlgorithm, size: int) -> Iterator[_Load]:
    for steps in all_ranks(algorithm, size):
        yield _load(steps, size)


def _load(steps: list[Step], size: int) -> _Load:
    messages, arrivals, sent, received, reduced = np.zeros((5, size), dtype=np.int64)
    edges = []
    for step in steps:
        blocks = np.where(step.when, step.nblocks, 0)
        if step.kind is Kind.SEND:
            messages += step.when
            sent += blocks
            sources = np.flatnonzero(step.when)
            edges.append((sources, step.peer[sources]))
        if step.kind in (Kind.RECV, Kind.RECV_REDUCE):
            arrivals += step.when
            received += blocks
        if step.kind in (Kind.RECV_REDUCE, Kind.REDUCE):
            reduced += blocks
    return _Load(messages, arrivals, sent, received, reduced, edges)
