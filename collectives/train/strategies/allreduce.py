"""Synchronous data parallelism: every step uses the gradient of the whole global batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base import Strategy

if TYPE_CHECKING:
    from ..buckets import Bucket


class AllReduce(Strategy):
    """All-reduce each bucket while the backward pass goes on, wait before the step (Li et al., VLDB 2020, sec. 3.2).

    * `average` (default: True): the gradient is the mean over the samples of all ranks. So p ranks compute the same as
      one rank with the same global batch, even if the ranks' parts differ in length or are empty. Each rank sends its
      gradient times its number of samples, and that number in the same message. With False, the gradient is the sum of
      the ranks' gradients: p times the mean if all parts have the same length.
    * `bucket_bytes`: the longest bucket, in bytes (default: 1 MiB). Raises ValueError if it is below 1.
    * `algorithm`: name of an all-reduce algorithm, for a communicator whose ``Iallreduce`` takes one. By default the
      communicator chooses.
    """

    replicated = True

    def __init__(
        self, average: bool = True, bucket_bytes: int = Strategy.bucket_bytes, algorithm: str | None = None
    ) -> None:
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes must be at least 1, not {bucket_bytes}")
        self.average = average
        self.bucket_bytes = bucket_bytes
        self.algorithm = algorithm
        self._chosen = {} if algorithm is None else {"algorithm": algorithm}
        self._pending: list[tuple[Any, Bucket]] = []

    def on_bucket(self, bucket: Bucket) -> None:
        """Start the all-reduce of this bucket."""
        from mpi4py import MPI

        if self.average:
            bucket.grads *= bucket.samples
            bucket.weight[0] = bucket.samples
        request = self.comm.Iallreduce(MPI.IN_PLACE, bucket.flat, op=MPI.SUM, **self._chosen)
        self._pending.append((request, bucket))

    def before_step(self) -> None:
        """Wait for the buckets, in the order in which they were sent."""
        for request, bucket in self._pending:
            request.Wait()
            if self.average:  # later buckets are still under way meanwhile
                bucket.grads /= bucket.weight[0]
        self._pending.clear()

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "average": self.average, "algorithm": self.algorithm}
