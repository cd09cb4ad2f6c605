"""Positions of ranks in a schedule, chosen by the hosts that the ranks are on.

A schedule knows ranks by positions. If position i is rank i, an algorithm that sends its largest messages to distant
positions sends them to other hosts when hosts have neighbouring ranks, and then every rank of a host sends them. Two
other orders keep most of what is sent on the hosts:

    in turn   the first rank of every host, then the second rank of every host, ...: distances that are multiples of the
              number of hosts stay on a host (for circulant)
    grouped   the ranks of the first host, then those of the second, ...: neighbours are on one host (for ring)

Ranks must be interchangeable: blocks are not the ranks' own, there is no root, and the op commutes.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from .build import all_ranks
from .registry import ScheduleAlgorithm
from .steps import Kind

__all__ = ["ORDERS", "crossing", "nearest", "placed"]

#: The orders by name; each function returns the rank at each position, given the number of each rank's host.
ORDERS = {
    "in turn": lambda hosts: np.lexsort((hosts, _local(hosts))),
    "grouped": lambda hosts: np.argsort(hosts, kind="stable"),
}


def _local(hosts: np.ndarray) -> np.ndarray:
    """For each rank the number of lower ranks on its host."""
    grouped = np.argsort(hosts, kind="stable")
    first = np.searchsorted(hosts[grouped], hosts[grouped])
    local = np.empty(len(hosts), np.int64)
    local[grouped] = np.arange(len(hosts)) - first
    return local


@functools.lru_cache(maxsize=256)
def nearest(algorithm: ScheduleAlgorithm, hosts: bytes) -> tuple[ScheduleAlgorithm, str]:
    """The algorithm in the order of ranks in which the least leaves a host, and that order; "" is the ranks' own.

    ``hosts`` is an int32 array: the number of each rank's host.
    """
    if algorithm.spec.blockwise or algorithm.spec.rooted or not algorithm.order:
        return algorithm, ""
    ranks = ORDERS[algorithm.order](np.frombuffer(hosts, np.int32))
    if np.array_equal(ranks, np.arange(len(ranks))):
        return algorithm, ""
    moved = placed(algorithm, ranks)
    if algorithm.order == "grouped" or crossing(moved, hosts) < crossing(algorithm, hosts):
        return moved, algorithm.order
    return algorithm, ""


def placed(algorithm: ScheduleAlgorithm, ranks: np.ndarray) -> ScheduleAlgorithm:
    """The algorithm with ``ranks[i]`` at position i. It no longer keeps the order of operands."""
    return replace(algorithm, generator=algorithm.generator.on(ranks.tolist()), ordered=False, linear=False)


@functools.lru_cache(maxsize=256)
def crossing(algorithm: ScheduleAlgorithm, hosts: bytes) -> float:
    """The part of the vector that leaves or enters the host for which it is most, over its link.

    For an all-reduce on h hosts it is at least 2(h-1)/h.
    """
    of = np.frombuffer(hosts, np.int32)
    leaving, entering = np.zeros((2, of.max() + 1))
    for steps in all_ranks(algorithm, len(of)):
        for step in steps:
            if step.kind is Kind.SEND:
                here = np.flatnonzero(step.when)
                away = here[of[here] != of[step.peer[here]]]
                np.add.at(leaving, of[away], step.nblocks[away])
                np.add.at(entering, of[step.peer[away]], step.nblocks[away])
    return float(max(leaving.max(), entering.max())) / algorithm.blocks(len(of))
