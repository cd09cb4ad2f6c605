"""``Loader``: disjoint shards of a data set, and each rank's part of every global batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..agree import communicator
from ..models.nn import Array

SHARDS = ("shuffled", "strided", "sorted")


class Loader:
    """This rank's part of every global batch of a data set.

    `dataset` is a sequence of arrays with the same number of rows, labels last. ``for x, y in loader`` yields, for one
    epoch, this rank's rows of each array. `batch` is the number of samples of all ranks together; the last batch of an
    epoch has the samples that are left. In every step the ranks' parts together are the global batch. In every epoch
    each sample is used once. Parts differ by at most one sample; some are empty if a batch has fewer samples than there
    are ranks.

    `shard` says which rank uses which samples (p is the number of ranks):

    * ``"shuffled"`` (default): all samples are shuffled together every epoch. A global batch has the same samples for
      any number of ranks.
    * ``"strided"``: rank r keeps samples r, r + p, r + 2p, ... and shuffles these.
    * ``"sorted"``: the samples are sorted by label, and rank r keeps the r-th part, so that each rank has only some of
      the labels.

    The order of the samples depends on `seed` (default 0) and on the epoch; with ``"strided"`` and ``"sorted"`` also on
    the rank. Of `comm` only ``rank`` and ``size`` are used (default: the world). Raises ValueError for arrays of
    different length or without rows, a batch below 1, an unknown shard, a negative seed.
    """

    def __init__(
        self,
        dataset: Sequence[Any],
        batch: int,
        *,
        seed: int = 0,
        comm: Any = None,
        shard: str = "shuffled",
    ) -> None:
        self.arrays = tuple(dataset)
        lengths = [len(a) for a in self.arrays]
        if not lengths or len(set(lengths)) != 1 or lengths[0] == 0:
            raise ValueError(f"the arrays of a data set need the same number of rows, at least 1; these have {lengths}")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        if shard not in SHARDS:
            raise ValueError(f"unknown shard {shard!r}; there are {', '.join(SHARDS)}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, not {seed}")
        comm = communicator(comm)
        self.rank, self.size = int(comm.rank), int(comm.size)
        self.samples, self.batch, self.seed, self.shard = lengths[0], batch, seed, shard
        self.epoch = 0
        self.step = 0
        self._own = self._own_shard()

    def __len__(self) -> int:
        """Steps per epoch, the same on all ranks."""
        return math.ceil(self.samples / self.batch)

    def _own_shard(self) -> Array | None:
        """The samples that this rank keeps in all epochs; None if they change every epoch."""
        if self.shard == "strided":
            return np.arange(self.rank, self.samples, self.size)
        if self.shard == "sorted":
            labels = np.asarray(self.arrays[-1])
            if labels.ndim != 1:
                raise ValueError(f"sorting needs one label per sample, got labels of shape {labels.shape}")
            small, larger = divmod(self.samples, self.size)
            start = self.rank * small + min(self.rank, larger)
            return np.argsort(labels, kind="stable")[start : start + small + (self.rank < larger)]
        return None

    def indices(self, epoch: int) -> Array:
        """The row numbers of the samples that this rank uses in `epoch`, in order."""
        if self._own is None:
            order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
            return order[self.rank :: self.size]
        return np.random.default_rng([self.seed, epoch, self.rank]).permutation(self._own)

    def _dealt(self, count: int) -> int:
        """How many of an epoch's first `count` samples are this rank's: sample i goes to rank i mod p."""
        return (count - self.rank + self.size - 1) // self.size

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the batches that are left of the current epoch, then set the position to the next epoch.

        The position counts a batch as used as soon as it is yielded.
        """
        order = self.indices(self.epoch)
        while self.step < len(self):
            start = self.step * self.batch
            stop = min(start + self.batch, self.samples)
            rows = order[self._dealt(start) : self._dealt(stop)]
            self.step += 1
            yield tuple(a[rows] for a in self.arrays)
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position (epoch and step), and the settings of the loader for which it is valid."""
        return {"epoch": self.epoch, "step": self.step, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises ValueError if it is for another number of samples, batch, seed or shard.

        The number of ranks may differ. With ``"strided"`` and ``"sorted"``, some samples of an epoch that another
        number of ranks began may then be used twice or not at all.
        """
        for key, value in self._identity().items():
            if state[key] != value:
                raise ValueError(f"the saved position is for {key} = {state[key]!r}, this loader has {value!r}")
        self.epoch, self.step = int(state["epoch"]), int(state["step"])

    def _identity(self) -> dict[str, Any]:
        return {"samples": self.samples, "batch": self.batch, "seed": self.seed, "shard": self.shard}
