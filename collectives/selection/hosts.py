"""Which algorithm serves a call between hosts, and which rank takes which position: those of least time on the links.

A vector of n bytes in k segments takes

    (rounds + k - 1) alpha + n (c busiest + (path - busiest) / k) beta + n local WITHIN

on links of latency ``alpha`` and ``beta`` seconds a byte. ``busiest``, ``path`` and ``local`` are parts of the vector
(:class:`collectives.analysis.cost.Crossing`): the most that leaves or enters a host in all; the sum over the rounds of
the most that does so in each; the most that a rank moves within its host. ``c`` is MIXED where several hosts may send
to one host at the same time, else 1. Both times of a link are nominal for reductions, since the bits of a result
must not depend on a measurement. What is only moved follows the link that the ranks measured
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

__all__ = ["AT_ONCE", "CANDIDATES", "NOMINAL", "SEGMENTS", "SHORTEST", "Link", "between", "nearest"]


class Link(NamedTuple):
    """A link between hosts: seconds of a short message, and seconds a byte."""

    alpha: float
    beta: float

    def __str__(self) -> str:
        return f"{1e6 * self.alpha:.0f} us, {8e-6 / self.beta:.0f} Mbit/s"


#: For reductions, and where nothing has been measured: a link of 10 Gbit/s.
NOMINAL = Link(8e-6, 0.8e-9)
#: The factor by which a link takes longer for as many bytes if messages of several hosts arrive at the same time.
MIXED = 1.2
#: Bytes over the busiest link up to which that takes no longer: sockets and queues take them up. An algorithm whose
#: reduction has no segments serves at most so long a vector, since links rest while its ranks reduce.
QUEUED = 512 << 10
#: Seconds a byte of messages within a host.
WITHIN = 0.2e-9
#: Candidates for vectors of at least SHORTEST bytes. All-to-alls have one, see AT_ONCE.
CANDIDATES = {
    "allreduce": ("recursive_halving", "circulant", "ring"),
    "allgather": ("circulant", "ring"),
    "reduce_scatter": ("circulant", "ring"),
    "bcast": ("binomial", "scatter_allgather", "chain"),
}
SHORTEST = 64 << 10
#: Algorithms with a round for each rank, and the most ranks that they serve.
BY_RANK = frozenset({"ring", "scatter_allgather", "chain"})
MOST_RANKS = 256
#: Bytes of a segment that are tried for what is only moved. The command tune measures all of them.
SEGMENTS = (None, 1 << 20, 512 << 10, 256 << 10, 128 << 10)
#: Bytes of a segment of a reduction, each one of SEGMENTS, for the algorithms that serve long vectors.
REDUCED = {"circulant": 256 << 10, "ring": 512 << 10}
#: Ranks up to which all blocks of an all-to-all are sent at once. In rounds of one block for each rank, a rank that is
#: late makes links rest: `pairwise` took 1.05 to 2.6 times as long, for 4 and 16 MiB on 8x1 and 4x2 ranks, with links
#: of 200 and 1000 Mbit/s and without a limit.
AT_ONCE = 64


@functools.lru_cache(maxsize=256)
def nearest(algorithm: ScheduleAlgorithm, hosts: bytes) -> tuple[ScheduleAlgorithm, str]:
    """The algorithm in the order of ranks in which it takes least time, and the name of that order; "" is its own.

    ``hosts`` is an int32 array: the number of each rank's host.
    """
    host_of = np.frombuffer(hosts, np.int32)
    if not host_of.any():  # one host
        return algorithm, ""
    found = orders(algorithm, hosts)
    if algorithm.name == "ring" and len(host_of) <= MOST_RANKS:
        lanes = in_lanes(algorithm, hosts)
        if len(set(np.bincount(host_of))) == 1:
            return lanes, "in lanes"
        found["in lanes"] = lanes
    elif algorithm.name in BY_RANK and "block" in found:  # as good as any, and costly to count
        return found["block"], "block"
    name = "" if len(found) == 1 else min(found, key=lambda order: _volume(found[order], hosts, NOMINAL))
    return found[name], name


def _volume(algorithm: ScheduleAlgorithm, hosts: bytes, link: Link) -> float:
    """Seconds for each byte of a vector in very many segments."""
    carried = crossing(algorithm, hosts)
    return carried.busiest * link.beta + carried.local * WITHIN


def _seconds(algorithm: ScheduleAlgorithm, hosts: bytes, nbytes: int, segment: int | None, link: Link) -> float:
    carried, size = crossing(algorithm, hosts), len(hosts) // 4
    k = -(-nbytes // segment) if segment else 1
    mixed = algorithm.name not in BY_RANK and carried.busiest * nbytes > QUEUED
    moved = carried.busiest * (MIXED if mixed else 1.0) + (carried.path - carried.busiest) / k
    return (algorithm.rounds(size) + k - 1) * link.alpha + nbytes * (moved * link.beta + carried.local * WITHIN)


def between(hosts: bytes, collective: str, nbytes: int, link: Link | None) -> tuple[Any, int | None, str] | None:
    """Algorithm, bytes of a segment and reason for a vector of ``nbytes``; None where the default rule stands.

    ``hosts`` is as in :func:`nearest`; ``link`` is the measured one, which all ranks know, None if none was. The ranks
    of an all-to-allv do not know each other's lengths, so ``nbytes`` does not count there.
    """
    size = len(hosts) // 4
    if collective == "alltoallv" or (collective == "alltoall" and nbytes >= SHORTEST):
        if size > AT_ONCE:
            return None
        return registry.find(collective, "linear"), None, f"all blocks at once, between up to {AT_ONCE} ranks"
    names = _candidates(collective, size, nbytes)
    if not names:
        return None
    reduces = registry.spec(collective).reduces
    known = "a nominal" if reduces else "an unmeasured" if link is None else "a measured"
    link = NOMINAL if link is None or reduces else link
    best, least = None, float("inf")
    for name in names:
        algorithm = registry.find(collective, name)
        assert isinstance(algorithm, ScheduleAlgorithm)
        placed, _ = nearest(algorithm, hosts)
        cuts = (REDUCED.get(name),) if reduces else SEGMENTS
        for segment in cuts if algorithm.divisible(size) else (None,):
            seconds = _seconds(placed, hosts, nbytes, segment, link)
            if seconds < least:
                best, least = (algorithm, segment), seconds
    assert best is not None
    return *best, f"least time between hosts, {1e3 * least:.1f} ms on {known} link of {link}"


def _candidates(collective: str, size: int, nbytes: int) -> list[str]:
    """The names of the algorithms that are compared; of those that take as long the first is best."""
    if nbytes < SHORTEST:
        return []
    unsegmented = nbytes <= QUEUED or not registry.spec(collective).reduces
    return [
        name for name in CANDIDATES.get(registry.base(collective), ())
        if (size <= MOST_RANKS or name not in BY_RANK) and (unsegmented or name in REDUCED)
    ]  # fmt: skip
