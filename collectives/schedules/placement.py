"""Positions of ranks in a schedule, chosen by the hosts that the ranks are on.

A schedule knows ranks by positions. If position i is rank i, an algorithm that sends its largest messages to distant
positions sends them to other hosts when hosts have neighbouring ranks, and then every rank of a host sends them. Other
orders keep most of what is sent on the hosts:

    cyclic  the first rank of every host, then the second rank of every host, ...: distances that are multiples of the
            number of hosts stay on a host (for circulant)
    block   the ranks of the first host, then those of the second, ...: neighbours are on one host (for ring, chain and
            binomial trees)

Where there is a root, its host is the first one, and it is the first rank of it. Where blocks belong to ranks, they
take the places of their owners. An op must commute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from .registry import ScheduleAlgorithm
from .schedule import Ints, Round, Rounds, Step, mapped

__all__ = ["orders"]


def orders(algorithm: ScheduleAlgorithm, hosts: bytes) -> dict[str, ScheduleAlgorithm]:
    """The algorithm in its own order (named ""), and in the orders of ranks that suit it, without repetitions.

    ``hosts`` is an int32 array: the number of each rank's host.
    """
    of = np.frombuffer(hosts, np.int32)
    size, found = len(of), {"": algorithm}
    if not algorithm.order or algorithm.spec.blockwise and not algorithm.divisible(size):
        return found
    if algorithm.order == "block":
        if algorithm.spec.rooted or np.any(np.diff(of) < 0):
            found["block"] = _placed(algorithm, lambda root: _block(of, root))
        return found
    ranks = _cyclic(of)
    if np.any(ranks != np.arange(size)):
        found["cyclic"] = _placed(algorithm, lambda root: ranks)
    return found


def _local(hosts: np.ndarray) -> np.ndarray:
    """For each rank the number of lower ranks on its host."""
    grouped = np.argsort(hosts, kind="stable")
    first = np.searchsorted(hosts[grouped], hosts[grouped])
    local = np.empty(len(hosts), np.int64)
    local[grouped] = np.arange(len(hosts)) - first
    return local


def _cyclic(hosts: np.ndarray) -> np.ndarray:
    return np.lexsort((hosts, _local(hosts)))


def _block(hosts: np.ndarray, root: int) -> np.ndarray:
    """The ranks host by host; the root's host first, and the root first of all."""
    ranks = np.arange(len(hosts))
    return np.lexsort((ranks, ranks != root, (hosts - hosts[root]) % (hosts.max() + 1)))


def _placed(algorithm: ScheduleAlgorithm, ranks_for: Callable[[int], np.ndarray]) -> ScheduleAlgorithm:
    """The algorithm with ``ranks_for(root)[i]`` at position i, the root at position 0; operands are in no order."""
    spec, inner = algorithm.spec, algorithm.generator

    def rounds(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
        ranks = ranks_for(root)
        moved = inner.on(ranks)(rank, size, **({"root": 0} if spec.rooted else {}))

        def renamed(step: Step) -> Step:
            source = np.where(np.asarray(step.src_block) < 0, step.src_block, ranks[np.maximum(step.src_block, 0)])
            return replace(step, block=ranks[step.block], src_block=source)

        for steps in moved:
            yield mapped(steps, renamed) if spec.blockwise else steps

    kept = not spec.reduces
    return replace(algorithm, generator=Rounds(rounds), ordered=kept, linear=kept)
