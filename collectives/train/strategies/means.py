"""The exchange of one backward pass: the mean over the samples of all ranks, bucket by bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..compression import Compression
from ..flat.buckets import Bucket

LAG = 2  # buckets that are handed over before a request of a compression is waited for

Start = Callable[[Bucket, Any], Any]


def averages(comm: Any) -> bool:
    """Whether the ranks' mean can be had in one operation."""
    return hasattr(comm, "empty")


class Means:
    """Replaces each bucket's gradients, means over this rank's samples, by the mean over the samples of all ranks.

    The ranks first add up their numbers of samples, n of this rank and N of all p. That sum is started with the first
    bucket. When it is there, gradients are multiplied by ``n p / N``, which is 1 if all parts have the same length, and
    the ranks' mean of these is taken. With `weighted` False gradients are added up as they are.

    ``start(bucket, op)`` starts the operation on a bucket and returns its request. With `compression`, that exchanges
    the buckets instead. Its next request is started after a fixed number of later buckets, since the order of
    collective calls must not depend on when requests complete.
    """

    def __init__(self, comm: Any, start: Start, weighted: bool, compression: Compression[Any] | None) -> None:
        self._comm, self._start, self._weighted, self._compression = comm, start, weighted, compression
        self._count = np.zeros(1)
        self._counting: Any = None
        self._known = False
        self._waiting: deque[Bucket] = deque()
        self._requests: list[Any] = []
        self._exchanges: list[_Exchange] = []
        self.active = False

    def add(self, bucket: Bucket) -> None:
        """Take a bucket, and start what can be started without waiting."""
        from mpi4py import MPI

        if not self.active:
            self.active = True
            self._known = not self._weighted
            self._count[0] = bucket.samples
            if self._weighted:
                self._counting = self._comm.Iallreduce(MPI.IN_PLACE, self._count, op=MPI.SUM)
        self._waiting.append(bucket)
        if self._known or self._counting.Test():
            self._flush()

    def finish(self) -> int:
        """Wait for everything. Returns the number of samples of all ranks; 0 if nothing was added."""
        if not self.active:
            return 0
        if not self._known:
            self._counting.Wait()
        self._flush()
        for request in self._requests:
            request.Wait()
        while self._exchanges:
            self._advance(None)
        self._requests.clear()
        self.active = False
        return int(self._count[0])

    def wait_first(self) -> None:
        """Wait for the oldest bucket that is under way, if there is one."""
        if not self._known and self.active:
            self._counting.Wait()
            self._flush()
        if self._requests:
            self._requests.pop(0).Wait()

    def _flush(self) -> None:
        self._known = True
        while self._waiting:
            self._send(self._waiting.popleft())

    def _send(self, bucket: Bucket) -> None:
        if self._weighted:
            self._weigh(bucket)
        if self._compression is None:
            self._requests.append(self._start(bucket, self._op()))
            return
        self._advance(bucket.index)
        iterator = self._compression.exchange(bucket, self._comm)
        self._exchanges.append(_Exchange(iterator, next(iterator, None), bucket.index + LAG))

    def _weigh(self, bucket: Bucket) -> None:
        total = self._count[0]
        mean = self._compression is not None or averages(self._comm)
        weight = bucket.samples * (self._comm.size if mean else 1) / total if total else 0.0
        if bucket.samples == 0:
            bucket.grads.fill(0)  # the mean over no samples may be NaN
        elif weight != 1:
            np.multiply(bucket.grads, bucket.dtype.type(weight), out=bucket.grads)

    def _op(self) -> Any:
        from mpi4py import MPI

        if self._weighted and averages(self._comm):
            import collectives

            return collectives.AVG
        return MPI.SUM

    def _advance(self, index: int | None) -> None:
        """Let exchanges go on to their next requests: those that are due at bucket `index`, or all."""
        going = [exchange for exchange in self._exchanges if exchange.request is not None]
        for exchange in going:
            if index is None or index >= exchange.due:
                exchange.request.Wait()
                exchange.request = next(exchange.iterator, None)
                exchange.due = (index or 0) + LAG
        self._exchanges = [exchange for exchange in going if exchange.request is not None]


@dataclass
class _Exchange:
    """A compressed exchange of a bucket, the request under way, and the bucket at which that is waited for."""

    iterator: Iterator[Any]
    request: Any
    due: int
