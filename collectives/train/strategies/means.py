"""The exchange of one backward pass: the mean over the samples of all ranks, bucket by bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..flat.buckets import Bucket

LAG = 2  # buckets that are handed over before a request of a compression is waited for

Start = Callable[[Bucket, Any], Any]
Compress = Callable[[Bucket, float], Iterator[Any]]


def averages(comm: Any) -> bool:
    """Whether the ranks' mean can be had in one operation."""
    return hasattr(comm, "empty")


class Means:
    """Replaces each bucket's gradients, means over this rank's samples, by the mean over the samples of all ranks.

    Gradients are multiplied by ``n p / N``, which is 1 if all parts have the same length, and the ranks' mean of these
    is taken. n is the number of samples of this rank, N that of all p ranks, which they add up in the background. If
    `guess` is True, no bucket waits for this sum: N is taken to be `expected`, that of the pass before, and `finish`
    returns the factor by which results are to be corrected. With `weighted` False gradients are added up as they are,
    but for those of ranks without samples.

    ``start(bucket, op)`` starts the operation on a bucket and returns its request. If there is `compress`, then
    ``compress(bucket, weight)`` exchanges the weighted gradients instead: it yields one request after the other. Its
    next request is started after a fixed number of later buckets, since the order of collective calls must not depend
    on when requests complete.
    """

    def __init__(self, comm: Any, start: Start, compress: Compress | None, weighted: bool, guess: bool) -> None:
        self._comm, self._start, self._compress = comm, start, compress
        self._weighted, self._guess = weighted, guess
        self.expected = 0.0  # samples of all ranks; 0 if there was no pass with samples
        self._count = np.zeros(1)
        self._counting: Any = None
        self._total = 0.0  # N, or what it is taken to be
        self._known = False
        self._waiting: deque[tuple[Bucket, int]] = deque()  # with their samples, which the next pass changes
        self._requests: list[Any] = []
        self._exchanges: list[_Exchange] = []
        self.active = False

    def add(self, bucket: Bucket) -> None:
        """Take a bucket, and start what can be started without waiting."""
        from mpi4py import MPI

        if not self.active:
            self.active = True
            self._total = self.expected if self._guess else 0.0
            self._known = not self._weighted or self._total > 0
            self._count[0] = bucket.samples
            if self._weighted:
                self._counting = self._comm.Iallreduce(MPI.IN_PLACE, self._count, op=MPI.SUM)
        self._waiting.append((bucket, bucket.samples))
        if self._known or self._counting.Test():
            self._flush()

    def finish(self) -> tuple[int, float]:
        """Wait for everything. Returns the number of samples of all ranks, 0 if nothing was added, and the factor."""
        if not self.active:
            return 0, 1.0
        if self._weighted:
            self._counting.Wait()
        self._flush()
        for request in self._requests:
            request.Wait()
        while self._exchanges:
            self._advance(None)
        self._requests.clear()
        self.active = False
        total = float(self._count[0])
        if not self._weighted or not total:
            return int(total), 1.0
        self.expected = total
        return int(total), self._total / total

    def wait_first(self) -> None:
        """Wait for the oldest bucket that is under way, if there is one."""
        if not self._known and self.active:
            self._counting.Wait()
            self._flush()
        if self._requests:
            self._requests.pop(0).Wait()

    def _flush(self) -> None:
        if not self._known:
            self._known, self._total = True, float(self._count[0])
        while self._waiting:
            self._send(*self._waiting.popleft())

    def _send(self, bucket: Bucket, samples: int) -> None:
        weight = self._weight(samples) if self._weighted else float(samples > 0)  # that of no samples may be NaN
        if self._compress is None:
            bucket.put_scaled(weight, bucket)
            self._requests.append(self._start(bucket, self._op()))
            return
        self._advance(bucket.index)
        iterator = self._compress(bucket, weight)
        self._exchanges.append(_Exchange(iterator, next(iterator, None), bucket.index + LAG))

    def _weight(self, samples: int) -> float:
        mean = self._compress is not None or averages(self._comm)
        return samples * (self._comm.size if mean else 1) / self._total if self._total else 0.0

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
