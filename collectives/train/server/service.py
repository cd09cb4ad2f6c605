"""``Service``: what one server answers to the messages of its workers. There is no communication here.

The same messages in the same order have the same effect, so that a backup which gets copies of all messages holds the
same state. A worker sends messages again if the server that they went to has died. The numbers of messages tell which
of them have been handled already.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..models.nn import Array
from .messages import CHUNK, Bytes, Kind, Message, pack
from .shard import Shard

Replies = list[Bytes]


class Service:
    """Serves `shard`, the one with this `number`, to `workers`, until they have left. ``workers`` has those left."""

    def __init__(self, number: int, shard: Shard, workers: Iterable[int]) -> None:
        self.shard, self._number = shard, number
        self.workers = set(workers)
        self._handled = dict.fromkeys(self.workers, 0)  # number of the last message
        self._stepping: dict[int, int] = {}  # number
        self._meeting: dict[int, int] = {}  # number
        self._series: dict[int, int] = {}  # the next number of each
        self._latest = dict.fromkeys(self.workers, -1)  # the series of which a worker took last
        self._taken = dict.fromkeys(self.workers, 0)
        self._saved = b""
        self._loading = bytearray()

    def handle(self, message: Message) -> Replies:
        """Handle a message. Returns replies, to this worker and to others that waited for it."""
        worker = message.worker
        if worker not in self.workers:
            return [self._reply(message, 0, 0)] if message.kind == Kind.LEAVE else []
        if message.kind == Kind.DROP:
            self._remove(worker)
            return self._granted()
        again = message.number <= self._handled[worker]
        if not again:
            self._handled[worker] = message.number
            self._apply(message)
        mine = self._answer(message, again)
        return self._granted() + ([] if mine is None else [mine])

    def _apply(self, message: Message) -> None:
        """The effect of a message."""
        worker, first, second, payload = message.worker, message.first, message.second, message.payload
        shard = self.shard
        match message.kind:
            case Kind.PUSH:
                shard.stage(worker, first, payload)
            case Kind.PUSH_ROWS:
                shard.stage_rows(worker, first, second, message.third, payload)
            case Kind.DISCARD:
                shard.discard(worker)
            case Kind.STEP:
                shard.end_clock(worker, first, payload.copy().view(np.float64).tolist())
                self._stepping[worker] = message.number
            case Kind.PUT_ROWS:
                table, array, steps = payload[:24].copy().view(np.int64).tolist()
                shard.tables[table].write(array, steps, second, payload[24:])
            case Kind.MEET:
                self._meeting[worker] = message.number
                shard.rest(worker)
            case Kind.TAKE:
                self._taken[worker] = self._next(worker, first)
            case Kind.SAVE if first == 0:
                self._saved = pickle.dumps(shard.state())
            case Kind.LOAD:
                self._load(first, second, payload)
            case Kind.LEAVE:
                self._remove(worker)

    def _next(self, worker: int, series: int) -> int:
        """The next number of a series. When one begins, those are forgotten that no worker can take of any more."""
        if series not in self._series:
            oldest = min(self._latest[other] for other in self.workers)
            self._series = {one: following for one, following in self._series.items() if one >= oldest} | {series: 0}
        number = self._series[series]
        self._series[series], self._latest[worker] = number + 1, series
        return number

    def _answer(self, message: Message, again: bool) -> Bytes | None:
        """The reply to a message, if there is one and it does not wait for others."""
        worker, first = message.worker, message.first
        match message.kind:
            case Kind.PUSH | Kind.PUSH_ROWS | Kind.DISCARD:
                return None
            case Kind.STEP | Kind.MEET if not again or worker in self._stepping or worker in self._meeting:
                return None
            case Kind.STEP | Kind.MEET:
                return self._pulled(Kind(message.kind), worker, message.number)
            case Kind.PULL_ROWS:
                table = self.shard.tables[first]
                return self._reply(message, table.steps, 0, table.read(message.second, message.payload))
            case Kind.TAKE:
                return self._reply(message, self._taken[worker], 0)
            case Kind.SAVE:
                part = np.frombuffer(self._saved[first : first + CHUNK], np.uint8)
                return self._reply(message, 0, len(self._saved), part)
        return self._reply(message, 0, 0)

    def _reply(self, message: Message, first: int, second: int, *arrays: Any) -> Bytes:
        return pack(message.kind, message.worker, self._number, message.number, first, second, *arrays)

    def _granted(self) -> Replies:
        """Replies to workers that have waited for others and need not do so any more."""
        going = [worker for worker in self._stepping if self.shard.clocks.may_pull(worker)]
        replies = [self._pulled(Kind.STEP, worker, self._stepping.pop(worker)) for worker in going]
        if self._meeting and self._meeting.keys() >= self.workers:
            self.shard.meet()
            replies += [self._parameters(Kind.MEET, *met, self.shard.parameters()) for met in self._meeting.items()]
            self._meeting.clear()
        return replies

    def _pulled(self, kind: Kind, worker: int, number: int) -> Bytes:
        """The reply to a STEP, or to a MEET that has come again: the worker pulls what is there now."""
        self.shard.pull(worker)
        data = self.shard.answer(worker) if kind == Kind.STEP else self.shard.parameters()
        return self._parameters(kind, worker, number, data)

    def _parameters(self, kind: Kind, worker: int, number: int, data: list[Array]) -> Bytes:
        clocks = self.shard.clocks
        return pack(kind, worker, self._number, number, clocks.gap, clocks.lag, *data, third=clocks.dropped)

    def _load(self, start: int, total: int, part: Bytes) -> None:
        if start == 0:
            self._loading.clear()
        self._loading += part.tobytes()
        if len(self._loading) == total:
            self.shard.load(pickle.loads(bytes(self._loading)))
            self._loading.clear()

    def _remove(self, worker: int) -> None:
        self.workers.discard(worker)
        self._stepping.pop(worker, None)
        self._meeting.pop(worker, None)
        self.shard.remove(worker)
