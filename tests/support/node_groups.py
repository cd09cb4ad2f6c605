"""Ranks of the node-local engine in one process."""

import threading

from collectives.core import _core
from collectives.system import shared_memory


def gathering(size):
    """An all-gather of objects for so many threads, each of which calls it with its rank and its object."""
    told, meeting = {}, threading.Barrier(size, timeout=20)

    def gather(rank, value):
        told[rank] = value
        meeting.wait()
        everything = [told[q] for q in range(size)]
        meeting.wait()
        return everything

    return gather


def joined(size):
    """A group of so many ranks; for each its calls and its part of the engine."""
    offers, found, gather = [shared_memory.offer() for _ in range(size)], {}, gathering(size)

    def join(rank):
        known = {q: offer for q, (offer, _) in enumerate(offers)}
        engine = shared_memory.join(rank, size, known, offers[rank][1], lambda value: gather(rank, value)).engine
        calls = _core.Calls()
        calls.set_group(rank, size)
        calls.node = engine
        found[rank] = calls, engine

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[rank] for rank in range(size)]
