"""The exchange of one backward pass: the mean over the samples of all ranks, bucket by bucket."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..deaths import survives
from ..flat.buckets import Bucket

LAG = 2  # buckets that are handed over before a request of a compression is waited for

Start = Callable[[Bucket, Any], Any]
Compress = Callable[[Bucket, float], Iterator[Any]]


def averages(comm: Any) -> bool:
    """Whether the ranks' mean can be had in one operation."""
    return hasattr(comm, "empty")


def apart(comm: Any) -> Any:
    """A communicator of the ranks of `comm`, for what is under way from a backward pass to its step. Collective.

    When a bucket is sent depends on this rank's gradients, and on when the number of samples is known. On `comm` that
    would be another order than on other ranks, if the program calls collectives meanwhile, or trains other networks.
    It is freed as all communicators are whose last reference has gone. A single rank needs none.
    """
    return comm.Dup() if comm.size > 1 else comm


class HasMessagesApart:
    """A strategy whose messages are on a communicator of their own, `_messages`, made by `apart`."""

    comm: Any
    _messages: Any

    def give_up(self) -> None:
        """See `Strategy.give_up`."""
        if self._messages is not self.comm:
            self._messages.Revoke()
            self._messages = self.comm

    def leave_messages(self) -> None:
        """Let nothing be under way, before a resize: this rank may not have noticed the loss of the others."""
        if survives(self.comm):
            self.give_up()


class Means:
    """Replaces each bucket's gradients, means over this rank's samples, by the mean over the samples of all ranks.

    Gradients are multiplied by ``n p / N``, which is 1 if all parts have the same length, and the ranks' mean of these
    is taken. n is the number of samples of this rank, N that of all p ranks, which they add up in the background. If
    `guess` is True, no bucket waits for this sum: N is taken to be `expected`, that of the pass before, and `finish`
    returns the factor by which results are to be corrected. With `weighted` False gradients are added up as they are,
    but for those of ranks without samples.

    Elements of a type with a short range must not overflow where their mean does not. So with `bounded` no gradient is
    multiplied by more than 1: if parts differ in length, all are multiplied by a power of two besides, which is in the
    factor, too. Not with `guess`, nor with `compress`.

    ``start(bucket, op)`` starts the operation on a bucket and returns its request. If there is `compress`, then
    ``compress(bucket, weight)`` exchanges the weighted gradients instead: it yields one request after the other. Its
    next request is started after a fixed number of later buckets, since the order of collective calls on `comm` must
    not depend on when requests complete. If it cannot be started yet, later buckets wait.
    """

    def __init__(
        self, comm: Any, start: Start, compress: Compress | None, weighted: bool, guess: bool, bounded: bool = False
    ) -> None:  # fmt: skip
        self._comm, self._start, self._compress = comm, start, compress
        self._weighted, self._guess = weighted, guess
        self.expected = 0.0  # samples of all ranks; 0 if there was no pass with samples
        self._count = np.zeros(2 if bounded else 1)  # samples, and their squares
        self._counting: Any = None
        self._total = 0.0  # N, or what it is taken to be
        self._bound = 1.0  # the power of two
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
            self._count[:] = [bucket.samples, bucket.samples**2][: len(self._count)]
            if self._weighted:
                self._counting = self._comm.Iallreduce(MPI.IN_PLACE, self._count, op=MPI.SUM)
        self._waiting.append((bucket, bucket.samples))
        if self._known or self._counting.Test():
            self._flush(wait=False)

    def finish(self) -> tuple[int, float]:
        """Wait for everything. Returns the number of samples of all ranks, 0 if nothing was added, and the factor."""
        if not self.active:
            return 0, 1.0
        if self._weighted:
            self._counting.Wait()
        self._flush(wait=True)
        for request in self._requests:
            request.Wait()
        while self._exchanges:
            self._advance(None, wait=True)
        self._requests.clear()
        self.active = False
        total = float(self._count[0])
        if not self._weighted or not total:
            return int(total), 1.0
        self.expected = total
        return int(total), self._total / total / self._bound

    def wait_first(self) -> None:
        """Wait for the oldest bucket that is under way, if there is one."""
        if not self._known and self.active:
            self._counting.Wait()
            self._flush(wait=True)
        if self._requests:
            self._requests.pop(0).Wait()

    def _flush(self, wait: bool) -> None:
        """Send the buckets that wait, N being there; without `wait`, up to the first one that has to wait on."""
        if not self._known:
            self._known, self._total = True, float(self._count[0])
            if self._total and len(self._count) > 1:
                self._bound = bound(self._comm.size, *map(float, self._count))
        while self._waiting and self._advance(self._waiting[0][0].index, wait):
            self._send(*self._waiting.popleft())

    def _send(self, bucket: Bucket, samples: int) -> None:
        weight = self._weight(samples) if self._weighted else float(samples > 0)  # that of no samples may be NaN
        if self._compress is None:
            bucket.put_scaled(weight, bucket)
            self._requests.append(self._start(bucket, self._op()))
            return
        iterator = self._compress(bucket, weight)
        self._exchanges.append(_Exchange(iterator, next(iterator, None), bucket.index + LAG))

    def _weight(self, samples: int) -> float:
        mean = self._compress is not None or averages(self._comm)
        return self._bound * samples * (self._comm.size if mean else 1) / self._total if self._total else 0.0

    def _op(self) -> Any:
        from mpi4py import MPI

        if self._weighted and averages(self._comm):
            import collectives

            return collectives.AVG
        return MPI.SUM

    def _advance(self, index: int | None, wait: bool) -> bool:
        """Let exchanges go on to their next requests, in order: those that are due at bucket `index`, or all.

        Returns False, without `wait`, if one cannot yet; the same call goes on from there.
        """
        self._exchanges = [exchange for exchange in self._exchanges if exchange.request is not None]
        for exchange in self._exchanges:
            if index is None or index >= exchange.due:
                if wait:
                    exchange.request.Wait()
                elif not exchange.request.Test():
                    return False
                exchange.request = next(exchange.iterator, None)
                exchange.due = (index or 0) + LAG
        return True


def bound(ranks: int, total: float, squares: float) -> float:
    """A power of two, at most 1, times which no rank's ``n ranks / total`` is above 1; 1 if all n are equal.

    `total` is the sum of the ranks' n, `squares` that of their squares. No number of a set is further above the mean
    than ``sqrt(ranks - 1)`` standard deviations (Samuelson 1968).
    """
    spread = max(0.0, ranks * squares / total**2 - 1)  # the variance of n ranks / total
    return float(2.0 ** -math.ceil(math.log2(1 + math.sqrt((ranks - 1) * spread))))


@dataclass
class _Exchange:
    """A compressed exchange of a bucket, the request under way, and the bucket at which that is waited for."""

    iterator: Iterator[Any]
    request: Any
    due: int
