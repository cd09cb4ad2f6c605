"""Flat arrays for an optimizer: whole buckets or this rank's shards of them, with float32 weights if they have 16 bits.

Sharded optimizer state is that of ZeRO (Rajbhandari et al. 2020, sec. 5.1 and 5.2), master weights are those of mixed
precision (Micikevicius et al. 2018, sec. 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..checkpoint import Shard
from ..flat.buckets import Bucket
from ..flat.memory import allocate, cut, is_narrow, own, squares
from ..flat.model import Handle, Work
from ..loading import check_mapping
from ..models.nn import Array

PIECE = 1 << 14  # elements


class Part:
    """The elements ``start`` to ``stop`` of a bucket, which this rank's optimizer changes.

    ``received`` is where the exchange leaves their mean gradient. ``data`` and ``grad`` are what the optimizer works on
    (see `Work`): float32 arrays of their own if the bucket's elements have 16 bits, else parts of the bucket.
    ``exchanged`` is the bucket on which a compression works: with `widen`, which is for elements of 16 bits, one of
    float32. ``inspected`` are the gradients that this rank looks at: the ranks together look at each once.
    """

    def __init__(self, bucket: Bucket, comm: Any, shard: bool, widen: bool) -> None:
        self.bucket, self.shard = bucket, shard
        self.exchanged = bucket.widened(comm) if widen else bucket
        self.total, self.group, self.name = len(bucket), bucket.group, f"bucket {bucket.index}"
        self.start, self.stop = own(self.total, comm.rank, comm.size) if shard else (0, self.total)
        count = self.stop - self.start
        self.received = allocate(comm, count, bucket.dtype) if shard else self.exchanged.grads
        self.move(comm)
        self.master = is_narrow(bucket.dtype)
        self.data, self.grad = bucket.data[self.start : self.stop], self.received
        if self.master:
            self.data = self.data.astype(np.float32)
            self.grad = self.received if widen else np.zeros(count, np.float32)
        self._sums: Array | None = None

    def move(self, comm: Any) -> None:
        """Take the ranks of `comm`: which gradients this rank inspects, and who has which shard."""
        self.comm = comm
        self.counts = cut(self.total, comm.size)
        mine = own(self.total, comm.rank, comm.size)
        self.inspected = self.received if self.shard else self.received[slice(*mine)]
        self.inspected_start = mine[0]

    def squares(self) -> float:
        """The sum of the squares of ``inspected``; of a parameter that other ranks of the model hold, its share."""
        total = squares(self.inspected)
        for slot in self.bucket.parameters:
            if slot.copies > 1:
                start = max(slot.start - self.inspected_start, 0)
                stop = max(slot.start + slot.size - self.inspected_start, 0)
                total -= (1 - 1 / slot.copies) * squares(self.inspected[start:stop])
        return total

    def add_up(self, samples: int) -> None:
        """Add ``samples * received`` to the sum of the passes of this step."""
        if self._sums is None:
            self._sums = np.zeros_like(self.grad)
        self._sums += np.multiply(self.received, self._sums.dtype.type(samples), dtype=self._sums.dtype)

    def take_mean(self, samples: int) -> None:
        """Make ``received`` the mean over the passes that were added up, of `samples` samples together."""
        assert self._sums is not None
        np.divide(self._sums, self._sums.dtype.type(max(samples, 1)), out=self.received, casting="unsafe")
        self._sums.fill(0)

    def forget(self) -> None:
        """Drop the passes that were added up."""
        if self._sums is not None:
            self._sums.fill(0)

    def prepare(self, factor: float) -> None:
        """Make ``grad`` what was received times `factor`."""
        if self.master:
            np.multiply(self.received, np.float32(factor), out=self.grad, dtype=np.float32)
        elif factor != 1:
            self.grad *= self.grad.dtype.type(factor)
        if self.exchanged is not self.bucket:  # the program may read the gradients after the step
            with np.errstate(over="ignore", invalid="ignore"):
                self.bucket.grads[...] = self.grad

    def publish(self) -> Any:
        """Bring the optimizer's weights into the bucket. Returns a request if those of other ranks come too."""
        from mpi4py import MPI

        if self.master:
            self.bucket.data[self.start : self.stop] = self.data
        if self.shard:
            return self.comm.Iallgatherv(MPI.IN_PLACE, [self.bucket.data, self.counts])
        return None

    def refresh(self) -> None:
        """Take weights that the program has changed in the network, or loaded into it.

        A master weight that rounds to the network's is kept.
        """
        if not self.master:
            return
        network = self.bucket.data[self.start : self.stop]
        for start in range(0, len(network), PIECE):  # pieces that stay in a cache
            mine, theirs = self.data[start : start + PIECE], network[start : start + PIECE]
            with np.errstate(over="ignore", invalid="ignore"):
                changed = mine.astype(theirs.dtype) != theirs
            if changed.any():
                mine[changed] = theirs[changed]

    def leaf(self, array: Array) -> Any:
        """`array`, of the shape of ``data``, as a leaf of a state."""
        return Shard(array, self.start, self.total) if self.shard else array

    def read(self, leaf: Any) -> Array:
        """This rank's part of a leaf: a `Shard`, a `Stored` or the whole array. ValueError for another length."""
        if isinstance(leaf, Shard):
            if (leaf.start, leaf.start + len(leaf.array), leaf.total) == (self.start, self.stop, self.total):
                return np.asarray(leaf.array)
            raise ValueError(f"{self.name}: the state is a shard of another cut; save it as a checkpoint and load that")
        if tuple(leaf.shape) != (self.total,):
            raise ValueError(f"{self.name} has {self.total} elements, the state {tuple(leaf.shape)}")
        return leaf.read(self.start, self.stop) if hasattr(leaf, "read") else np.asarray(leaf)[self.start : self.stop]


def state_of(parts: Sequence[Part], handle: Handle) -> dict[str, Any]:
    """The state of an optimizer that works on `parts`, with shards in place of whole arrays."""
    by_name = {part.name: part for part in parts}

    def leaf(work: Work, array: Array) -> Any:
        return by_name[work.name].leaf(array)

    names = {part.name: [slot.name for slot in part.bucket.parameters] for part in parts}
    masters = {part.name: part.leaf(part.data.copy()) for part in parts if part.master}
    return {"buckets": names, "optimizer": handle.state(leaf), "masters": masters}


def load_state(parts: Sequence[Part], handle: Handle, state: Mapping[str, Any]) -> None:
    """Restore what `state_of` returned, for any number of ranks. ValueError if it is for other buckets.

    TypeError for what is no mapping.
    """
    check_mapping("the optimizer", state)
    by_name = {part.name: part for part in parts}
    names = {part.name: [slot.name for slot in part.bucket.parameters] for part in parts}
    found = {name: list(parameters) for name, parameters in dict(state.get("buckets", {})).items()}
    if names != found:
        raise ValueError("the optimizer's state is for other buckets: for another network, shard or bucket_bytes")
    masters = {part.name: part.read(state["masters"][part.name]) for part in parts if part.master}

    def read(work: Work, leaf: Any) -> Array:
        return by_name[work.name].read(leaf)

    handle.load(state["optimizer"], read)
    for name, array in masters.items():
        by_name[name].data[...] = array
