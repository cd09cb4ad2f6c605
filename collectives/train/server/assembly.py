"""Puts together what a rank needs: a server, a client, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..flat.buckets import Bucket
from ..flat.model import Handle
from .client import Client, Link, Watch, capacities
from .clocks import Policy
from .layout import Places, Range
from .lifeline import Lifeline
from .loop import Server
from .service import Service
from .shard import Piece, Shard
from .tables import Rows, Table


class Assembly:
    """Makes servers and clients of `buckets` and `tables`, at `places`, which exchange messages on `comm`."""

    def __init__(
        self, comm: Any, places: Places, buckets: Sequence[Bucket], layout: Sequence[Sequence[Range]],
        tables: Mapping[str, Table],
    ) -> None:  # fmt: skip
        self._comm, self._places, self._buckets, self._layout = comm, places, list(buckets), layout
        self._tables = list(tables.values())
        row = 8 + max([table.row_bytes for table in self._tables], default=0)
        self._longest_message, self._longest_reply = capacities(layout, self._buckets, row)

    def server(self, handle: Handle, policy: Policy, lifeline: Lifeline) -> Server:
        """The server that this rank is."""
        own = self._places.served_by(self._comm.rank)
        assert own is not None
        services = {own: self._service(own, handle, policy)}
        backed = self._places.primary(self._comm.rank)
        if backed is not None:
            services[backed[0]] = self._service(backed[0], handle, policy)
        _, *backup = self._places.homes(own)
        return Server(
            self._comm,
            services,
            own,
            self._places.workers,
            self._longest_message,
            lifeline,
            backup=backup[0] if backup else None,
            primary=None if backed is None else backed[1],
        )

    def _service(self, shard: int, handle: Handle, policy: Policy) -> Service:
        pieces = [Piece(self._buckets[part.bucket], part) for part in self._layout[shard]]
        rows = [Rows(table, shard, self._places.servers) for table in self._tables]
        made = Shard(pieces, handle.copy(), self._places.workers, policy, rows)
        return Service(shard, made, self._places.workers)

    def client(self, watch: Watch) -> Client:
        """The worker's side, to which the tables belong from now on."""
        shards = range(self._places.servers)
        links = [Link(self._comm, s, self._places.homes(s), self._longest_reply, watch) for s in shards]
        workers = self._places.workers
        client = Client(links, self._layout, self._buckets, workers.index(self._comm.rank), len(workers))
        for number, table in enumerate(self._tables):
            table.attach(client, number)
        return client
