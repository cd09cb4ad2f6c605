"""Which algorithm serves a call between hosts, and which rank takes which position: those of least time on the links.

A vector of n bytes in k segments takes ``(rounds + k - 1) alpha + n (busiest + (path - busiest) / k) beta`` on links
with latency ``alpha`` and ``beta`` seconds a byte, and the time of what moves within hosts
(:class:`collectives.analysis.cost.Crossing`). Both times of a link are nominal for reductions, since the bits of a
result must not depend on a measurement. What is only moved follows the link that the ranks measured
(:mod:`collectives.runtime.links`).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from ..algorithms.lanes import in_lanes
from ..analysis.cost import crossing
from ..schedules import registry
from ..schedules.placement import orders
from ..schedules.registry import ScheduleAlgorithm

__all__ = ["CANDIDATES", "FROM", "NOMINAL", "Link", "between", "nearest"]


class Link(NamedTuple):
    """A link between hosts: seconds of a short message, and seconds a byte."""

    alpha: float
    beta: float

    def __str__(self) -> str:
        return f"{1e6 * self.alpha:.0f} us, {8e-6 / self.beta:.0f} Mbit/s"


#: For reductions, and where nothing has been measured: a link of 10 Gbit/s.
NOMINAL = Link(8e-6, 0.8e-9)
#: How much longer links take for as many bytes if messages of several hosts arrive at once, others at other times, and
#: from how many bytes on: sockets and the queues of a link take up fewer without delay.
MIXED, QUEUED = 1.2, 256 << 10
#: Seconds a byte of messages within a host.
WITHIN = 0.2e-9
#: Candidates for vectors of at least FROM bytes. Those that take a round for each rank serve at most MOST_RANKS. Those
#: without segments of a reduction serve at most QUEUED bytes, since links rest while a rank reduces.
CANDIDATES = {
    "allreduce": ("recursive_halving", "circulant", "ring"),
    "allgather": ("recursive_doubling", "circulant", "ring"),
    "reduce_scatter": ("circulant", "ring"),
    "bcast": ("binomial", "scatter_allgather", "chain"),
}
FROM, MOST_RANKS, BY_RANK = 64 << 10, 256, frozenset({"ring", "scatter_allgather", "chain"})
#: Bytes of a segment that are tried for what is only moved, and those of a reduction by each algorithm.
SEGMENTS = (None, 1 << 20, 512 << 10, 256 << 10, 128 << 10)
REDUCED = {"circulant": 256 << 10, "ring": 512 << 10}
#: An all-to-allv, of whose lengths each rank knows its own only, sends all at once on up to AT_ONCE ranks, if a link
#: takes at most FAST seconds a byte: on slower ones long blocks take less time by pairs of ranks.
AT_ONCE, FAST = 64, 8e-9
#: Algorithms whose ranks have one partner in a round: no other message arrives meanwhile. An all-gather by recursive
#: doubling has, too, but took 1.1 of a ring's time for 1 MiB on 8 hosts, as if messages were mixed.
PAIRS = frozenset({"recursive_halving"})


@functools.lru_cache(maxsize=256)
def nearest(algorithm: ScheduleAlgorithm, hosts: bytes) -> tuple[ScheduleAlgorithm, str]:
    """The algorithm in the order of ranks in which it takes least time, and the name of that order; "" is its own.

    ``hosts`` is an int32 array: the number of each rank's host.
    """
    of = np.frombuffer(hosts, np.int32)
    if not of.any():  # one host
        return algorithm, ""
    found = orders(algorithm, hosts)
    if algorithm.name == "ring" and len(of) <= MOST_RANKS:
        lanes = in_lanes(algorithm, hosts)
        if len(set(np.bincount(of))) == 1:
            return lanes, "in lanes"
        found["in lanes"] = lanes
    elif algorithm.name in BY_RANK and "grouped" in found:  # as good as any, and costly to count
        return found["grouped"], "grouped"
    name = "" if len(found) == 1 else min(found, key=lambda order: _volume(found[order], hosts, NOMINAL))
    return found[name], name


def _volume(algorithm: ScheduleAlgorithm, hosts: bytes, link: Link) -> float:
    """Seconds for each byte of a vector in very many segments."""
    carried = crossing(algorithm, hosts)
    return carried.busiest * link.beta + carried.local * WITHIN


def _seconds(algorithm: ScheduleAlgorithm, hosts: bytes, nbytes: int, segment: int | None, link: Link) -> float:
    carried, size = crossing(algorithm, hosts), len(hosts) // 4
    k = -(-nbytes // segment) if segment and algorithm.divisible(size) else 1
    mixed = algorithm.name not in BY_RANK | PAIRS and carried.busiest * nbytes > QUEUED
    moved = carried.busiest * (MIXED if mixed else 1.0) + (carried.path - carried.busiest) / k
    return (algorithm.rounds(size) + k - 1) * link.alpha + nbytes * (moved * link.beta + carried.local * WITHIN)


def between(hosts: bytes, collective: str, nbytes: int, link: Link | None) -> tuple[Any, int | None, str] | None:
    """Algorithm, bytes of a segment and reason for a vector of ``nbytes``; None where the table's choice stands.

    ``hosts`` is as in :func:`nearest`; ``link`` is the measured one, which all ranks know, None if none was.
    """
    owner, size = registry.base(collective), len(hosts) // 4
    if collective == "alltoallv" and size <= AT_ONCE and (link or NOMINAL).beta <= FAST:
        return registry.find(collective, "linear"), None, f"between up to {AT_ONCE} ranks"
    names = [name for name in CANDIDATES.get(owner, ()) if size <= MOST_RANKS or name not in BY_RANK]
    if nbytes < FROM or not names:
        return None
    link = NOMINAL if link is None or registry.find(owner, names[0]).spec.reduces else link
    best, least = None, float("inf")
    for name in names:
        algorithm = registry.find(collective, name)
        assert isinstance(algorithm, ScheduleAlgorithm)
        placed, _ = nearest(algorithm, hosts)
        if algorithm.spec.reduces and name not in REDUCED and nbytes > QUEUED:
            continue
        for segment in (REDUCED.get(name),) if algorithm.spec.reduces else SEGMENTS:
            seconds = _seconds(placed, hosts, nbytes, segment, link)
            if seconds < least:
                best, least = (algorithm, segment), seconds
    assert best is not None
    return *best, f"least time between hosts, {1e3 * least:.1f} ms at {link}"
