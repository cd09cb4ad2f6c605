"""Costs of algorithms: rounds and bytes, counted or as promised, and a time estimate.

Counting takes the rounds of all ranks at once from the generator and builds no schedule, so that thousands of ranks
cost little more than ten. Both sides of a message must be in the same round of the generator, which is so for every
algorithm of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..schedules.build import all_ranks
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Kind, Step

__all__ = ["Crossing", "Machine", "Promise", "Traffic", "count", "crossing", "promised", "seconds"]


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """What each rank does, in blocks of ``1/nblocks`` of the vector; arrays with one entry per rank.

    ``rounds`` is the longest chain of rounds with messages; ``messages`` is the number of messages that a rank sends.
    """

    nblocks: int
    rounds: int
    messages: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray

    def of(self, nbytes: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes sent, received and reduced, as three arrays over the ranks, for a vector of ``nbytes`` bytes.

        Exact if the blocks divide the vector evenly, otherwise correct to one element per block.
        """
        each = nbytes / self.nblocks
        return self.sent * each, self.received * each, self.reduced * each


class Promise(NamedTuple):
    """The promised number of rounds, and the bytes that the busiest rank sends."""

    rounds: int
    sent: float


class Crossing(NamedTuple):
    """What the hosts' links carry, in parts of the vector; each link carries both ways at once.

    ``busiest`` is the most that leaves or enters a host in all, ``path`` the sum over the rounds of the most that does
    in one round: if rounds do not overlap, the time of a vector over ``path`` links. ``local`` is the most that a rank
    sends or receives within its host.
    """

    busiest: float
    path: float
    local: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The linear cost model, in seconds: ``alpha`` per round, ``beta`` per byte moved, ``gamma`` per byte reduced.

    ``overhead`` is the time of each further message of a rank in a round: 0 if messages overlap fully, ``alpha`` if
    a rank handles one message after the other.
    """

    alpha: float
    beta: float
    gamma: float = 0.0
    overhead: float = 0.0


def promised(algorithm: ScheduleAlgorithm, size: int, nbytes: float) -> Promise:
    """Rounds and bytes for a vector of ``nbytes`` bytes, as the algorithm promises them; for root 0."""
    return Promise(algorithm.rounds(size), algorithm.sent(size) * nbytes / algorithm.blocks(size))


def count(algorithm: ScheduleAlgorithm, size: int) -> Traffic:
    """Count what each rank sends, receives and reduces; for root 0."""
    total = np.zeros((4, size), dtype=np.int64)
    for load in _loads(algorithm, size):
        total += (load.messages, load.sent, load.received, load.reduced)
    rounds = round(seconds(algorithm, size, 0, Machine(alpha=1, beta=0)))
    return Traffic(algorithm.blocks(size), rounds, *total)


def seconds(algorithm: ScheduleAlgorithm, size: int, nbytes: float, machine: Machine) -> float:
    """Estimated seconds of one collective on a vector of ``nbytes`` bytes, as one segment, with root 0.

    A rank's round begins when the rank and all its partners have ended their earlier rounds. It takes ``alpha`` and the
    overhead of further messages, plus ``beta`` per byte, plus ``gamma`` per byte reduced. Ranks send and receive at
    the same time: the direction with more messages or bytes counts. Copies within a rank cost nothing.
    """
    each = nbytes / algorithm.blocks(size)
    clock, begin = np.zeros((2, size))

    def meet(sources: np.ndarray, targets: np.ndarray, blocks: np.ndarray) -> None:
        np.maximum.at(begin, sources, clock[targets])
        np.maximum.at(begin, targets, clock[sources])

    for load in _loads(algorithm, size, meet):
        volume = np.maximum(load.sent, load.received) * machine.beta + load.reduced * machine.gamma
        messages = np.maximum(load.messages, load.arrivals)
        setup = machine.alpha + machine.overhead * (messages - 1)
        clock[:] = np.where(messages > 0, begin + setup, clock) + volume * each
        begin[:] = clock
    return float(clock.max())


@functools.lru_cache(maxsize=256)
def crossing(algorithm: ScheduleAlgorithm, hosts: bytes) -> Crossing:
    """Count what crosses the hosts' links; for root 0. ``hosts`` is an int32 array: the number of each rank's host.

    For an all-reduce on h hosts ``busiest`` is at least 2(h-1)/h.
    """
    of = np.frombuffer(hosts, np.int32)
    size, nblocks = len(of), algorithm.blocks(len(of))
    total, within, path = np.zeros((2, of.max() + 1)), np.zeros((2, size)), 0.0
    links = np.zeros_like(total)  # of one round

    def carry(sources: np.ndarray, targets: np.ndarray, blocks: np.ndarray) -> None:
        away = of[sources] != of[targets]
        np.add.at(links[0], of[sources[away]], blocks[away])
        np.add.at(links[1], of[targets[away]], blocks[away])
        np.add.at(within[0], sources[~away], blocks[~away])
        np.add.at(within[1], targets[~away], blocks[~away])

    for _ in _loads(algorithm, size, carry):
        total += links
        path += float(links.max())
        links[:] = 0
    return Crossing(float(total.max()) / nblocks, path / nblocks, float(within.max()) / nblocks)


class _Load(NamedTuple):
    """One round: for each rank, messages sent and received, and blocks moved and reduced."""

    messages: np.ndarray
    arrivals: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    reduced: np.ndarray


Along = Callable[[np.ndarray, np.ndarray, np.ndarray], None]  # takes sources, targets and blocks of some messages


def _loads(algorithm: ScheduleAlgorithm, size: int, along: Along | None = None) -> Iterator[_Load]:
    """Each round, after a call of ``along`` for each of its sends; no messages are kept."""
    for steps in all_ranks(algorithm, size):
        yield _load(steps, size, along)


def _load(steps: Iterable[Step], size: int, along: Along | None) -> _Load:
    messages, arrivals, sent, received, reduced = np.zeros((5, size), dtype=np.int64)
    for step in steps:
        blocks = np.where(step.when, step.nblocks, 0)
        if step.kind is Kind.SEND:
            messages += step.when
            sent += blocks
            if along is not None:
                sources = np.flatnonzero(step.when)
                along(sources, step.peer[sources], blocks[sources])
        if step.kind in (Kind.RECV, Kind.RECV_REDUCE):
            arrivals += step.when
            received += blocks
        if step.kind in (Kind.RECV_REDUCE, Kind.REDUCE):
            reduced += blocks
    return _Load(messages, arrivals, sent, received, reduced)
