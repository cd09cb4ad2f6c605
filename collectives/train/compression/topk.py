"""Only the largest gradients travel; the others wait."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..counts import real
from ..flat.buckets import Bucket
from ..models.nn import Array
from .base import Area, Compression


class Largest(Area):
    """The residuals of a bucket, and records of ``k`` values and their indices: one to send, one from each rank.

    ``dense`` says that the bucket is sent whole instead; there are no records then.
    """

    residual: Array

    def __init__(self, bucket: Bucket, comm: Any, density: float) -> None:
        super().__init__(bucket, comm)
        self.k = min(self.count, max(1, round(density * self.count)))
        self.residual = np.zeros(self.count, self.dtype)
        index = np.int32 if self.count <= np.iinfo(np.int32).max else np.int64
        record = np.dtype([("values", self.dtype, (self.k,)), ("indices", index, (self.k,))], align=True)
        whole = dense_bytes(bucket.grads.nbytes, comm.size)
        self.dense = self.k == 0 or sparse_bytes(record.itemsize, comm.size) > whole
        if not self.dense:
            self.scratch = np.empty((2, self.count), self.dtype)
            self.sent_bytes = self.message(record.itemsize, np.uint8)
            self.received_bytes = self.message(comm.size * record.itemsize, np.uint8)
            self.send, self.receive = self.sent_bytes.view(record), self.received_bytes.view(record)


def sparse_bytes(record: int, size: int) -> int:
    """Bytes that a rank of `size` receives in an all-gather of records."""
    return (size - 1) * record


def dense_bytes(nbytes: int, size: int) -> float:
    """Bytes that a rank of `size` receives in the best all-reduce of a long vector of `nbytes`."""
    return 2 * (size - 1) / size * nbytes


def largest(x: Array, k: int, scratch: Array) -> Array:
    """The indices of the `k` elements of `x` that are largest in magnitude, in ascending order.

    Of equal ones those with the lowest indices are taken. NaN counts as inf. `scratch` is (2, len(x)).
    """
    magnitude, order = scratch
    np.abs(x, out=magnitude)
    np.copyto(magnitude, np.inf, where=np.isnan(magnitude))
    order[...] = magnitude
    order.partition(len(x) - k)
    threshold = order[len(x) - k]
    above = np.flatnonzero(magnitude > threshold)
    equal = np.flatnonzero(magnitude == threshold)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


class TopK(Compression[Largest]):
    """The `density` part of the elements, those of the largest magnitude, with error feedback (Aji and Heafield, EMNLP
    2017, sec. 3; Stich et al., NeurIPS 2018, algorithm 1). The ranks gather all pairs of index and value (as SparCML:
    Renggli et al., SC 2019).

    g is the gradient, e the residual: what the rank has not sent in earlier steps. A rank sends the k = density x count
    largest elements of g + e, rounded, at least one. It keeps the others as e. Of equal elements it sends those that
    come first.

    Guarantee: what a rank has sent, and its residual, together are g + e, exactly. The result is the sum of what the
    ranks have sent, in rank order, divided by their number.

    Cost: k (bytes of an element + 4 for its index), in one all-gather. Each rank receives that from every other, so it
    pays with k < count / ranks for float32 only. Where an all-reduce would move fewer bytes, the bucket is sent whole
    by an all-reduce, and rank 0 warns once. Raises ValueError unless 0 < density <= 1.
    """

    per_rank = True

    def __init__(self, density: float = 0.01) -> None:
        super().__init__()
        if not 0 < real("density", density) <= 1:
            raise ValueError(f"density must be above 0 and at most 1, not {density}")
        self.density = density
        self._warned = False

    def _make(self, bucket: Bucket, comm: Any) -> Largest:
        area = Largest(bucket, comm, self.density)
        if area.dense and comm.rank == 0 and not self._warned:
            self._warned = True
            warnings.warn(
                f"TopK({self.density}) would move more than an all-reduce of bucket {bucket.index}: {area.k} of "
                f"{area.count} elements from each of {comm.size} ranks. Such buckets are sent whole.",
                stacklevel=2,
            )
        return area

    def exchange(self, bucket: Bucket, comm: Any) -> Iterator[Any]:
        """See `Compression.exchange`."""
        area, grads = self._area(bucket, comm), bucket.grads
        area.residual += grads
        if area.dense:
            grads[...] = area.residual
            area.residual.fill(0)
            yield self._allreduce(comm, grads, grads)
        else:
            self._take(area)
            yield self._allgather(comm, area.sent_bytes, area.received_bytes)
            grads.fill(0)
            with np.errstate(over="ignore", invalid="ignore"):
                np.add.at(grads, area.receive["indices"].reshape(-1), area.receive["values"].reshape(-1))
        grads /= comm.size

    def _take(self, area: Largest) -> None:
        """Move the largest elements from the residual into the record to send."""
        x = area.residual
        taken = largest(x, area.k, area.scratch)
        values = x[taken]
        area.send["indices"][0] = taken
        area.send["values"][0] = values
        x[taken] = 0
        if not np.isfinite(values).all():  # such elements are the largest, so there are none if none was taken
            x[~np.isfinite(x)] = 0

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "density": self.density}
