"""``Client``: a worker's side of all servers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from collectives import PeerFailure

from ..flat.buckets import Bucket
from ..models.nn import Array
from .layout import Range
from .messages import CHUNK, HEAD, REPLIES, REQUEST, Bytes, Kind, Message, as_bytes, pack, unpack
from .states import wholes
from .transfers import Pause, Transfer, receive, send

Watch = Callable[[], set[int]]


class Link:
    """This worker's messages to one shard, and their replies.

    `homes` are the ranks that have the shard: the one that serves it, and its backup. Messages are kept until a reply
    tells that they were handled; if the rank dies before, its backup gets them. `capacity` is the length of the longest
    reply. ``watch()`` returns the dead ranks, or raises if the job cannot go on.
    """

    def __init__(self, comm: Any, shard: int, homes: Sequence[int], capacity: int, watch: Watch) -> None:
        self._comm, self._shard, self._homes, self._watch = comm, shard, list(homes), watch
        self._buffer = np.empty(capacity, np.uint8)
        self._number = 0
        self._kept: list[Bytes] = []
        self._sends: list[Transfer] = []
        self._coming: Transfer | None = None

    def send(self, kind: Kind, first: int = 0, second: int = 0, *arrays: Array, third: int = 0) -> None:
        """Begin to send a message that has no reply."""
        self._number += 1
        self._kept.append(pack(kind, self._comm.rank, self._shard, self._number, first, second, *arrays, third=third))
        self._sends.append(send(self._comm, self._kept[-1], self._homes[0], REQUEST))

    def ask(self, kind: Kind, first: int = 0, second: int = 0, *arrays: Array) -> None:
        """Begin to send a message; `reply` waits for what comes back."""
        self._expect()
        self.send(kind, first, second, *arrays)

    def _expect(self) -> None:
        self._coming = receive(self._comm, self._buffer, self._homes[0], REPLIES + self._shard)

    def reply(self) -> Message:
        """The reply to the last `ask`, valid until the next one. PeerFailure if nobody can give it any more."""
        pause = Pause()
        while not self._answered():
            pause.rest()
            if self._homes[0] in self._watch():
                self._fail_over()
        self._coming = None
        self._kept.clear()
        self._sends.clear()
        return unpack(self._buffer)

    def _answered(self) -> bool:
        """Whether the reply to the last message is there, and all messages are sent.

        Replies to earlier messages are passed over. A backup replies to a worker as soon as that need not wait any
        more, and once more if the worker has not known of the death until then, and asks again.
        """
        assert self._coming is not None
        while self._coming.done():
            if unpack(self._buffer).number == self._number:
                return all([message.done() for message in self._sends])
            self._expect()
        return False

    def _fail_over(self) -> None:
        """Go on with the backup, to which all goes again that may be unknown there."""
        dead = self._homes.pop(0)
        for message in self._sends:
            message.done()  # or it fails, since MPI knows of the death
        if self._coming is not None:
            self._coming.cancel()
        if not self._homes:
            raise PeerFailure(f"rank {dead} died, which served the parameters of shard {self._shard}, without a backup")
        self._expect()
        self._sends = [send(self._comm, message, self._homes[0], REQUEST) for message in self._kept]


class Client:
    """Pushes the gradients of `buckets` to all servers, and pulls their parameters.

    ``links`` has a link for each server, `layout` which elements of which bucket it has. ``place`` of ``workers`` is
    this rank's number among the workers. ``gap``, ``lag`` and ``dropped`` are the largest that any server has recorded
    (see `Clocks`). After `leave` every request raises RuntimeError: nobody would answer it.
    """

    def __init__(
        self, links: Sequence[Link], layout: Sequence[Sequence[Range]], buckets: Sequence[Bucket], place: int,
        workers: int,
    ) -> None:  # fmt: skip
        self._all, self._layout, self._gone = list(links), layout, False
        self._progress, self._samples = buckets[0].progress, 0
        self.place, self.workers, self.servers = place, workers, len(links)
        self.gap = self.lag = self.dropped = 0

    def check(self) -> None:
        """Raise RuntimeError if the servers have left."""
        if self._gone:
            raise RuntimeError("the servers have left; distribute a copy of the network with a new optimizer")

    @property
    def _links(self) -> list[Link]:
        self.check()
        return self._all

    def push(self, bucket: int, samples: int, data: Array) -> None:
        """Begin to push `data`, of the length of a bucket: its gradient over `samples` samples, for example.

        All buckets of a step are of the same samples, of whose number `step` tells the servers.
        """
        self._samples = samples
        for link, mine in zip(self._links, self._layout, strict=True):
            part = mine[bucket]
            if part.start < part.stop:
                link.send(Kind.PUSH, bucket, 0, data[part.start : part.stop])

    def discard(self) -> None:
        """Begin to have servers drop what was pushed since the last step."""
        self._progress.staged = False
        for link in self._links:
            link.send(Kind.DISCARD)

    def step(self, rates: Sequence[float], into: Sequence[Array]) -> None:
        """End the clock with these learning rates, wait until this worker may go on, and read the parameters.

        They go `into` an array for each bucket.
        """
        self._progress.staged = False
        for link in self._links:
            link.ask(Kind.STEP, self._samples, 0, np.array(rates, np.float64))
        self._read(into)

    def meet(self, into: Sequence[Array] | None = None) -> None:
        """Wait until all workers have come to this call; read the parameters as `step` does, if `into` is given."""
        for link in self._links:
            link.ask(Kind.MEET)
        self._read(into)

    def _read(self, into: Sequence[Array] | None) -> None:
        for link, mine in zip(self._links, self._layout, strict=True):
            reply = link.reply()
            self.gap, self.lag = max(self.gap, reply.first), max(self.lag, reply.second)
            self.dropped = max(self.dropped, reply.third)
            start = 0
            for part in mine if into is not None else []:
                target = as_bytes(into[part.bucket][part.start : part.stop])  # type: ignore[index]
                target[:] = reply.payload[start : start + len(target)]
                start += len(target)

    def take(self, series: int) -> int:
        """The next number, from 0, of the series with this number. A worker takes of one after the other."""
        return self._asked(0, Kind.TAKE, series).first

    def push_rows(self, server: int, table: int, keys: Array, rows: Array) -> None:
        """Begin to push gradients of rows of a table, which `server` has, over the samples of the last backward pass.

        RuntimeError if there was none since the last step.
        """
        samples = self.samples
        self._progress.staged = True
        rows = np.ascontiguousarray(rows)
        self._links[server].send(Kind.PUSH_ROWS, table, len(keys), keys, rows, third=samples)

    @property
    def samples(self) -> int:
        """The number of samples of the last backward pass. RuntimeError if there was none since the last step."""
        found = self._progress.samples
        if found is None:
            raise RuntimeError(
                "gradients of rows belong to the samples of a backward pass of the network: push them after it, and "
                "before opt.step()"
            )
        return found

    def pull_rows(self, server: int, table: int, array: int, keys: Array) -> Bytes:
        """Rows of a table (`array` 0) or of what its optimizer keeps, as bytes; valid until the next call."""
        return self._asked(server, Kind.PULL_ROWS, table, array, keys).payload

    def put_rows(self, server: int, table: int, array: int, steps: int, keys: Array, rows: Array) -> None:
        """Write such rows, and the number of the optimizer's steps."""
        head = np.array([table, array, steps], np.int64)
        self._asked(server, Kind.PUT_ROWS, 0, len(keys), head, keys, np.ascontiguousarray(rows))

    def row_steps(self, table: int) -> int:
        """The largest number of updates of a table on any server."""
        none = np.zeros(0, np.int64)
        return max(self._asked(server, Kind.PULL_ROWS, table, 0, none).first for server in range(self.servers))

    def save(self) -> dict[str, Any]:
        """The state of all servers, with whole arrays."""
        states = []
        for server in range(self.servers):
            data, total = bytearray(), 1
            while len(data) < total:
                reply = self._asked(server, Kind.SAVE, len(data))
                data += reply.payload.tobytes()
                total = reply.second
            states.append(pickle.loads(bytes(data)))
        whole: dict[str, Any] = wholes(states)
        return whole

    def load(self, state: dict[str, Any]) -> None:
        """Bring a state to all servers, whose number may differ."""
        data = np.frombuffer(pickle.dumps(state), np.uint8)
        for server in range(self.servers):
            for start in range(0, len(data), CHUNK):
                self._asked(server, Kind.LOAD, start, len(data), data[start : start + CHUNK])

    def leave(self) -> None:
        """Need the servers no more."""
        self._progress.staged = False
        for link in self._links:
            link.ask(Kind.LEAVE)
        for link in self._links:
            link.reply()
        self._gone = True

    def _asked(self, server: int, kind: Kind, first: int = 0, second: int = 0, *arrays: Array) -> Message:
        self._links[server].ask(kind, first, second, *arrays)
        return self._links[server].reply()


def capacities(layout: Sequence[Sequence[Range]], buckets: Sequence[Bucket], row: int) -> tuple[int, int]:
    """The lengths in bytes of the longest message to a server and of the longest reply; `row` is that of a row."""
    sizes = [[(part.stop - part.start) * buckets[part.bucket].dtype.itemsize for part in mine] for mine in layout]
    more = CHUNK + row + 64
    return HEAD + max(more, *(max(each) for each in sizes)), HEAD + max(more, *(sum(each) for each in sizes))
