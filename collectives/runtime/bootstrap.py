"""The data that ranks exchange when they make a communicator, with MPI or without.

A rank reads the data of the other ranks one after the other and keeps what it needs: addresses and heaps of the ranks
on its own machine, and the number of ranks on each other machine.
"""

from __future__ import annotations

import array
import itertools
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..diagnostics import peer_queries
from ..selection.hosts import Link
from ..system import conditions, lifetime, machine, shared_memory
from . import links

__all__ = ["Hello", "Known", "Gather", "hello", "introduce"]

#: A function that all ranks call with a named tuple each; it returns those of all ranks, in rank order.
Gather = Callable[[Any], Iterable[Any]]

_serial = itertools.count()  # with the process id, it tells people which communicator; other containers may have both


class Hello(NamedTuple):
    """The data that a rank sends to all others. Rank 0's ``identity`` and ``settings`` hold for the communicator."""

    identity: str
    settings: bytes
    machine: str
    cores: bytes  # bit mask of the cores that the rank may run on, little-endian
    address: peer_queries.Address | None
    offer: shared_memory.Offer | None
    dead: list[tuple[str, int]]  # communicators, see :mod:`collectives.system.lifetime`
    timeline: bool  # whether it records one
    background: bool  # whether its calls may go on by themselves
    conditions: tuple[int, ...] | None  # in the first communicator of several ranks; a tuple is short when pickled
    link: Link | None  # between hosts, if its process knows one
    unannounced: int  # the most bytes of a message that its MPI sends to another host at once; 0: not known


class Known(NamedTuple):
    """What a rank keeps of the :class:`Hello` of all ranks."""

    identity: str
    settings: bytes
    ranks_on: Counter[str]  # number of ranks by machine
    hosts: bytes | None  # int32, the number of each rank's machine, if several have ranks
    here: int  # number of ranks on this machine
    usable_cores: float  # of the ranks on this machine together
    neighbours: dict[int, peer_queries.Address]
    offers: dict[int, shared_memory.Offer]
    separated: bool  # some ranks cannot ask some others by their sockets
    timeline: bool  # whether some rank records one
    background: bool  # whether the calls of all may go on by themselves
    advice: list[str]  # on rank 0: what is wrong with the start of the ranks on its machine
    link: Link | None  # the slowest latency and rate that a rank knows, if all know a link
    unannounced: int  # the most bytes of a message that the MPI of all ranks sends at once; 0 if one does not know


def hello(
    rank: int, size: int, offer: shared_memory.Offer | None, settings: bytes, timeline: bool, background: bool,
    unannounced: int,
) -> Hello:  # fmt: skip
    """This rank's :class:`Hello`; ``settings`` is used on rank 0 only."""
    name = machine.node_name()
    identity = f"{name}/{os.getpid()}/{next(_serial)}/{secrets.token_hex(8)}" if rank == 0 else ""
    cores = sum(1 << core for core in machine.affinity())
    mask = cores.to_bytes(-(-cores.bit_length() // 8), "little")
    address = peer_queries.address() if size > 1 else None
    settings = settings if rank == 0 else b""
    given = _conditions() if size > 1 else None
    return Hello(
        identity, settings, name, mask, address, offer, lifetime.dead(), timeline, background, given, links.known(),
        unannounced,
    )  # fmt: skip


_judged = False  # whether this process has told its conditions; they are told once


def _conditions() -> tuple[int, ...] | None:
    global _judged
    before, _judged = _judged, True
    return None if before else tuple(conditions.collect())


def introduce(rank: int, mine: Hello, all_ranks: Iterable[Hello]) -> Known:
    """Reduce all ranks' hellos to a :class:`Known`; also frees the communicators that are dead on all their ranks."""
    identity, settings, cores, timeline, background, link = "", b"", 0, False, True, mine.link
    unannounced = mine.unannounced
    judged = _Judged()
    ranks_on, votes = Counter[str](), Counter[tuple[str, int]]()
    homes: set[tuple[str, int, int] | None] = {None}
    neighbours: dict[int, peer_queries.Address] = {}
    offers: dict[int, shared_memory.Offer] = {}
    numbers: dict[str, int] = {}
    hosts = array.array("i")
    for peer, theirs in enumerate(all_ranks):
        if peer == 0:
            identity, settings = theirs.identity, theirs.settings
        ranks_on[theirs.machine] += 1
        hosts.append(numbers.setdefault(theirs.machine, len(numbers)))
        votes.update(theirs.dead)
        timeline |= theirs.timeline
        background &= theirs.background
        link = Link(*map(max, link, theirs.link)) if link and theirs.link else None
        unannounced = min(unannounced, theirs.unannounced)
        if theirs.machine == mine.machine:
            cores |= (mask := int.from_bytes(theirs.cores, "little"))
            if rank == 0 and theirs.conditions is not None:
                judged.add(peer, mask, conditions.Conditions(*theirs.conditions))
        if theirs.address is not None and peer != rank and peer_queries.can_ask(mine.address, theirs.address):
            neighbours[peer] = theirs.address
        if len(homes) <= 2:
            homes.add(theirs.address and theirs.address.home)
        if theirs.offer is not None and shared_memory.on_one_machine(mine.offer, theirs.offer):
            offers[peer] = theirs.offer
    lifetime.free_agreed(votes)
    usable = machine.usable_cores(cores.bit_count())
    here = ranks_on[mine.machine]
    layout = hosts.tobytes() if len(numbers) > 1 else None
    apart = len(homes) > 2
    told = judged.advice(here, len(hosts))
    return Known(
        identity, settings, ranks_on, layout, here, usable, neighbours, offers, apart, timeline, background, told, link,
        unannounced,
    )  # fmt: skip


class _Judged:
    """The conditions of the ranks of rank 0's machine."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._masks: list[int] = []
        self._found: list[conditions.Conditions] = []

    def add(self, rank: int, mask: int, found: conditions.Conditions) -> None:
        """Take note of a rank, with the mask of its cores."""
        self._ranks.append(rank)
        self._masks.append(mask)
        self._found.append(found)

    def advice(self, here: int, size: int) -> list[str]:
        """What is wrong with their start; nothing if some of the machine's ``here`` ranks have been judged before."""
        return list(conditions.advice(self._ranks, self._masks, self._found, size)) if len(self._ranks) == here else []
