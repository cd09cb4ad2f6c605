"""Which server has which elements of the buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..flat.buckets import Bucket


class Range(NamedTuple):
    """The elements [``start``, ``stop``) of bucket ``bucket``; there may be none."""

    bucket: int
    start: int
    stop: int


def ranges(buckets: Sequence[Bucket], servers: int) -> list[list[Range]]:
    """For each server, the elements that it has of each bucket.

    The bytes of all buckets, one after the other, are cut into equal parts. So servers have parts that differ by less
    than an element for each bucket, and most buckets are on one server.
    """
    total = sum(bucket.data.nbytes for bucket in buckets)
    edges = [total * server // servers for server in range(servers + 1)]
    found: list[list[Range]] = [[] for _ in range(servers)]
    begin = 0
    for bucket in buckets:
        size, end = bucket.dtype.itemsize, begin + bucket.data.nbytes
        at = [(min(max(edge, begin), end) - begin) // size for edge in edges]
        for server, mine in enumerate(found):
            mine.append(Range(bucket.index, at[server], at[server + 1]))
        begin = end
    return found


class Places:
    """Which of `size` ranks train, and which serve: the last `servers`, or with `beside` also the first ones.

    ``workers`` are the ranks that train. ``homes(s)`` are the ranks that have shard s: its server and, with `backup`,
    the next server.
    """

    def __init__(self, size: int, servers: int, beside: bool, backup: bool) -> None:
        self.workers = list(range(size if beside else size - servers))
        self._hosts = list(range(servers)) if beside else list(range(size - servers, size))
        self.servers, self._backup = servers, backup

    def homes(self, shard: int) -> list[int]:
        """The ranks that have a shard."""
        return [self._hosts[shard], *([self._hosts[(shard + 1) % self.servers]] if self._backup else [])]

    def served_by(self, rank: int) -> int | None:
        """The shard that a rank serves, if it serves."""
        return self._hosts.index(rank) if rank in self._hosts else None

    def primary(self, rank: int) -> tuple[int, int] | None:
        """Of the shard of which `rank` is the backup, if there is one: its number, and the rank that serves it."""
        own = self.served_by(rank)
        if own is None or not self._backup:
            return None
        shard = (own - 1) % self.servers
        return shard, self._hosts[shard]
