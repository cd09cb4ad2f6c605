"""Lanes: a ring through the hosts for each of as many ranks as the smallest host has, and messages within the hosts.

On hosts of 2 ranks, the first ranks of all hosts are one lane and the second ranks the other. Each lane owns half of
the vector. Rank (H, l) is the rank of lane l on host H, and S(H, l) are the blocks that it owns; ranks of larger hosts
that are in no lane take part on their host only.

    reduce-scatter   all ranks of host H send their S(H-1, l), S(H-2, l), ... to rank (H, l), which adds them to what
                     comes from host H-1 and passes the sum on to host H+1; S(H, l) ends on rank (H, l)
    all-gather       rank (H, l) passes S(H, l), then what comes from host H-1, to host H+1 and to all ranks of its host

Over a host's link go 2n(h-1)/h bytes of an all-reduce on h hosts, the least that is possible, and one neighbour's data
arrive at a time: 2(h-1) alpha + 2n(h-1)/h beta between hosts (the lanes of Traeff 2019, arXiv 1910.13373, with rings).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from ..schedules.build import all_ranks
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Ints, Kind, Round, Rounds, Step, recv, recv_reduce, send

__all__ = ["in_lanes"]

ABSENT = -1


@dataclass(frozen=True, eq=False)
class _Hosts:
    """Tables by rank, by host, and by host and lane; ABSENT where there is none.

    ``ranks[H]`` are the ranks of host H, those of the lanes first; ``sets[H, l]`` the blocks of S(H, l); ``owner`` the
    rank to which each block belongs, ABSENT if blocks belong to no ranks.
    """

    host: np.ndarray
    local: np.ndarray
    ranks: np.ndarray
    lanes: int
    sets: np.ndarray
    owner: np.ndarray

    @property
    def number(self) -> int:
        """Number of hosts."""
        return len(self.ranks)

    @property
    def several(self) -> bool:
        """Whether some host has several ranks."""
        return self.ranks.shape[1] > 1


def _tables(hosts: np.ndarray, blockwise: bool) -> _Hosts:
    counts = np.bincount(hosts)
    number, lanes, size = len(counts), int(counts.min()), len(hosts)
    ranks = np.full((number, counts.max()), ABSENT)
    local = np.empty(size, np.int64)
    for host in range(number):
        here = np.flatnonzero(hosts == host)
        ranks[host, : len(here)], local[here] = here, np.arange(len(here))
    if not blockwise:
        sets = np.arange(number * lanes).reshape(number, lanes, 1)
        return _Hosts(hosts, local, ranks, lanes, sets, np.full(number * lanes, ABSENT))
    depth = -(-ranks.shape[1] // lanes)
    padded = np.full((number, depth * lanes), ABSENT)
    padded[:, : ranks.shape[1]] = ranks
    return _Hosts(hosts, local, ranks, lanes, padded.reshape(number, depth, lanes).swapaxes(1, 2), np.arange(size))


def _within(at: _Hosts, rank: Ints, back: int, to_lanes: bool) -> Iterator[Step]:
    """On every host H, S(H - back, l) between rank (H, l) and the other ranks: to it, reduced there, or from it."""
    host, local = at.host[rank], at.local[rank]
    number = (host - back) % at.number
    for lane in range(at.lanes):
        for block in np.moveaxis(at.sets[number, lane], -1, 0):  # the other ranks' part
            when = (local != lane) & (block >= 0) & (to_lanes | (at.owner[block] != rank))
            make = send if to_lanes else recv
            yield make(at.ranks[host, lane], block, 1, when=when)
    for mate in range(at.ranks.shape[1]):
        peer = at.ranks[host, mate]
        for block in np.moveaxis(at.sets[number, np.minimum(local, at.lanes - 1)], -1, 0):  # the lane's part
            when = (local < at.lanes) & (local != mate) & (peer >= 0) & (block >= 0)
            if to_lanes:
                yield recv_reduce(peer, block, 1, received_left=peer < rank, when=when)
            else:
                yield send(peer, block, 1, when=when & (at.owner[block] != peer))


def _along(at: _Hosts, rank: Ints, back: int, reduces: bool) -> Iterator[Step]:
    """Send S(H - back, l) to the next host of the lane, and receive S(H - back - 1, l) from the one before."""
    host, lane = at.host[rank], np.minimum(at.local[rank], at.lanes - 1)
    there, here = at.ranks[(host + 1) % at.number, lane], at.ranks[(host - 1) % at.number, lane]
    inside = at.local[rank] < at.lanes
    for block in np.moveaxis(at.sets[(host - back) % at.number, lane], -1, 0):
        yield send(there, block, 1, when=inside & (block >= 0))
    for block in np.moveaxis(at.sets[(host - back - 1) % at.number, lane], -1, 0):
        when = inside & (block >= 0)
        if reduces:
            yield recv_reduce(here, block, 1, received_left=here < rank, when=when)
        else:
            yield recv(here, block, 1, when=when)


def _own(at: _Hosts, rank: Ints, from_lanes: bool) -> Iterator[Step]:
    """The blocks of ranks that are in no lane, between these ranks and the rank of the lane that has them."""
    host, local = at.host[rank], at.local[rank]
    outside, lane = local >= at.lanes, at.ranks[host, local % at.lanes]
    yield recv(lane, rank, 1, when=outside) if from_lanes else send(lane, rank, 1, when=outside)
    for mate in range(at.lanes, at.ranks.shape[1]):
        peer = at.ranks[host, mate]
        when = (local == mate % at.lanes) & (peer >= 0)
        yield send(peer, peer, 1, when=when) if from_lanes else recv(peer, peer, 1, when=when)


def _reduce_scatter(at: _Hosts, rank: Ints) -> Iterator[Round]:
    if at.several:
        yield list(_within(at, rank, 1, True))
    for back in range(1, at.number):
        yield [*_along(at, rank, back, True), *(_within(at, rank, back + 1, True) if at.several else ())]


def _allgather(at: _Hosts, rank: Ints) -> Iterator[Round]:
    for back in range(at.number - (not at.several)):
        along = _along(at, rank, back, False) if back < at.number - 1 else ()
        yield [*along, *(_within(at, rank, back, False) if at.several else ())]


def in_lanes(ring: ScheduleAlgorithm, hosts: bytes) -> ScheduleAlgorithm:
    """The all-reduce, all-gather or reduce-scatter ``ring`` in lanes; the op must commute.

    ``hosts`` is an int32 array: the number of each rank's host.
    """
    of, collective, blockwise = np.frombuffer(hosts, np.int32), ring.collective, ring.spec.blockwise
    at = _tables(of, blockwise)
    surplus = blockwise and at.ranks.shape[1] > at.lanes

    def rounds(rank: Ints, size: int) -> Iterator[Round]:
        if collective != "allgather":
            yield from _reduce_scatter(at, rank)
        if surplus:
            yield list(_own(at, rank, collective == "reduce_scatter"))
        if collective != "reduce_scatter":
            yield from _allgather(at, rank)

    halves = 1 + (collective == "allreduce")
    made = replace(
        ring, generator=Rounds(rounds), ordered=ring.ordered and not ring.spec.reduces,
        linear=ring.linear and not ring.spec.reduces, blocks=lambda p: len(at.owner),
        rounds=lambda p: halves * (at.number - 1 + at.several) + surplus,
    )  # fmt: skip
    sent, memory = (functools.partial(count, made, len(of)) for count in (_sent, _memory))
    return replace(made, sent=lambda p: sent(), memory=lambda p: memory())


@functools.lru_cache(maxsize=64)
def _sent(algorithm: ScheduleAlgorithm, size: int) -> int:
    """Blocks that the busiest rank sends."""
    total = np.zeros(size, np.int64)
    for steps in all_ranks(algorithm, size):
        for step in steps:
            total += np.where(step.when & (step.kind is Kind.SEND), step.nblocks, 0)
    return int(total.max())


@functools.lru_cache(maxsize=64)
def _memory(algorithm: ScheduleAlgorithm, size: int) -> int:
    """Blocks for staging two rounds of arrivals, and for a scratch vector where the caller's has one block."""
    most = 0
    for steps in all_ranks(algorithm, size):
        arrivals = sum(np.where(step.when, step.kind is Kind.RECV_REDUCE, 0) for step in steps)
        most = max(most, int(np.max(arrivals)))
    return 2 * most + size * (algorithm.collective == "reduce_scatter" and size > 2)
