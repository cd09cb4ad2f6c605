"""Servers without communication: workers' messages reach all servers in an order that the test chooses."""

import numpy as np

from collectives.train.flat.adapt import adapt
from collectives.train.flat.buckets import Buckets
from collectives.train.server.layout import ranges
from collectives.train.server.messages import Kind, pack, unpack
from collectives.train.server.service import Service
from collectives.train.server.shard import Piece, Shard
from collectives.train.server.tables import Rows


class Servers:
    """`servers` servers of the parameters of `net` for `workers` workers. ``data`` is what each worker has read."""

    def __init__(self, net, opt, workers, policy, servers=1, tables=(), bucket_bytes=512):
        model, handle = adapt(net, opt)
        self.buckets = Buckets(model, bucket_bytes, None).list
        self.layout = ranges(self.buckets, servers)
        self.services = []
        for number, parts in enumerate(self.layout):
            pieces = [Piece(self.buckets[part.bucket], part) for part in parts]
            rows = [Rows(table, number, servers) for table in tables]
            self.services.append(
                Service(number, Shard(pieces, handle.copy(), range(workers), policy, rows), range(workers))
            )
        self.data = [[bucket.data.copy() for bucket in self.buckets] for _ in range(workers)]
        self._numbers = np.zeros((workers, servers), int)
        self._waits = [set() for _ in range(workers)]

    def going(self):
        """The workers that wait for no reply."""
        return [worker for worker, waits in enumerate(self._waits) if not waits]

    def send(self, kind, worker, server, first=0, second=0, *arrays):
        """Deliver a message, and the replies to it."""
        self._numbers[worker, server] += 1
        packed = pack(kind, worker, server, self._numbers[worker, server], first, second, *arrays)
        if kind not in (Kind.PUSH, Kind.PUSH_ROWS):
            self._waits[worker].add(server)
        for reply in self.services[server].handle(unpack(packed)):
            self._read(unpack(reply))

    def _read(self, reply):
        self._waits[reply.worker].discard(reply.shard)
        start = 0
        for part in self.layout[reply.shard] if reply.kind in (Kind.STEP, Kind.MEET) else []:
            target = self.data[reply.worker][part.bucket][part.start : part.stop].view(np.uint8)
            target[:] = reply.payload[start : start + len(target)]
            start += len(target)

    def step(self, worker, grads, samples=1, rate=0.1):
        """A step of a worker, by a gradient for each bucket."""
        for server, parts in enumerate(self.layout):
            for part in parts:
                self.send(Kind.PUSH, worker, server, part.bucket, 0, grads[part.bucket][part.start : part.stop])
            self.send(Kind.STEP, worker, server, samples, 0, np.array([rate]))

    def parameters(self):
        """All parameters, as the servers have them."""
        found = [np.empty_like(bucket.data) for bucket in self.buckets]
        for service, parts in zip(self.services, self.layout, strict=True):
            for piece, part in zip(service.shard.pieces, parts, strict=True):
                found[part.bucket][part.start : part.stop] = piece.data
        return np.concatenate(found)
