"""Which of an epoch's samples are whose, where every rank can read all samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .permutation import Permutation
from .sources import Rows

AHEAD = 1 << 14  # rows that are looked up at a time: a small batch costs a slice


class Deal(Protocol):
    """The samples of one epoch that are one rank's, in its order."""

    def dealt(self, position: int) -> int:
        """How many of the epoch's first `position` samples are this rank's."""

    def pick(self, own: Rows) -> Rows:
        """The row numbers of this rank's samples with these numbers in its order."""


class Deals(Protocol):
    """Which samples of an epoch are which rank's, also where the number of ranks changes within the epoch."""

    @property
    def samples(self) -> int:
        """Samples of an epoch, of all ranks."""

    def begin(self, size: int) -> None:
        """An epoch begins with `size` ranks."""

    def deal(self, epoch: int, rank: int, size: int) -> Deal:
        """The samples of a rank in an epoch, from the position on from which there are `size` ranks."""

    def state_dict(self) -> dict[str, Any]:
        """What must be known besides the position, as plain values; the same on all ranks."""

    def load_state_dict(self, state: Mapping[str, Any], size: int, position: int) -> int:
        """`size` ranks go on from a saved `position`; where in the epoch they are then. ValueError if they cannot."""


class Reader:
    """Row numbers of consecutive batches of a deal of `total` samples, looked up many at a time."""

    def __init__(self, deal: Deal, total: int) -> None:
        self._deal, self._own = deal, deal.dealt(total)
        self._start, self._rows = 0, np.zeros(0, np.int64)
        self._last = (0, 0)  # where the last batch ended: in the epoch, among this rank's samples

    def rows(self, start: int, stop: int) -> Rows:
        """The row numbers of this rank's part of the samples `start` to `stop` of the epoch."""
        first = self._last[1] if self._last[0] == start else self._deal.dealt(start)
        last = self._deal.dealt(stop)
        self._last = (stop, last)
        if not self._start <= first <= last <= self._start + len(self._rows):
            end = min(max(last, first + AHEAD), self._own)
            self._start, self._rows = first, self._deal.pick(np.arange(first, end))
        return self._rows[first - self._start : last - self._start]


def turns(count: int, rank: int, size: int) -> int:
    """How many of `count` samples that are dealt in turn, the first to rank 0, are those of `rank`."""
    return (count - rank + size - 1) // size


class Shuffled:
    """All samples in one order per epoch; sample i of that order goes to rank i mod p. See `Deals` for the methods."""

    def __init__(self, samples: int, seed: int) -> None:
        self.samples, self._seed = samples, seed

    def begin(self, size: int) -> None:
        """The order does not depend on the number of ranks, so there is nothing to note."""

    def deal(self, epoch: int, rank: int, size: int) -> Deal:
        """Every p-th sample."""
        return _ShuffledDeal(Permutation(self.samples, self._seed, epoch), rank, size)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], size: int, position: int) -> int:
        """The position stays."""
        return position


class _ShuffledDeal:
    def __init__(self, order: Permutation, rank: int, size: int) -> None:
        self._order, self._rank, self._size = order, rank, size

    def dealt(self, position: int) -> int:
        return turns(position, self._rank, self._size)

    def pick(self, own: Rows) -> Rows:
        return self._order(self._rank + self._size * own)


class OwnShards:
    """Every rank has samples of its own, in an order of its own.

    `labels`: the ranks have consecutive parts of the samples sorted by label; None: of p ranks, rank r has the samples
    r, r + p, r + 2p, ... The i-th sample of the epoch is the next one of rank i mod p.

    Where p changes within an epoch, the samples that are left form a list: those of the old rank 0 in its order, then
    those of rank 1, and so on. Each new rank gets a consecutive part of that list. So `_history` has, for the current
    epoch, the numbers of ranks that there were and the positions from which on they were there. Nothing else needs to
    be known to find any rank's samples.
    """

    def __init__(self, samples: int, seed: int, labels: NDArray[Any] | None) -> None:
        self.samples, self._seed = samples, seed
        self._sorted = None if labels is None else np.argsort(labels, kind="stable")
        self._history: list[list[int]] = []

    def begin(self, size: int) -> None:
        """Forget the epoch before."""
        self._history = [[size, 0]]

    def deal(self, epoch: int, rank: int, size: int) -> Deal:
        """A rank's own samples."""
        return _OwnDeal(self.samples, (self._seed, epoch), self._sorted, self._history, rank)

    def state_dict(self) -> dict[str, Any]:
        """The numbers of ranks in this epoch, with the positions from which on they were there."""
        return {"ranks": [[*entry] for entry in self._history]}

    def load_state_dict(self, state: Mapping[str, Any], size: int, position: int) -> int:
        """Take over a saved epoch, what is left of which `size` ranks share. The position stays.

        ValueError for what `state_dict` cannot have made.
        """
        history = [[int(ranks), int(start)] for ranks, start in state["ranks"]]
        starts = [start for _, start in history]
        if starts[:1] != [0] or starts != sorted(set(starts)) or starts[-1] > position or min(history)[0] < 1:
            raise ValueError(f"the saved position has impossible numbers of ranks: {history}")
        if history[-1][0] != size:
            history = [*(entry for entry in history if entry[1] < position), [size, position]]
        self._history = history
        return position


class _OwnDeal:
    def __init__(
        self, samples: int, key: tuple[int, int], order: Rows | None, history: list[list[int]], rank: int
    ) -> None:
        self._samples, self._key, self._sorted, self._history, self._rank = samples, key, order, history, rank
        self._size, self._begin = history[-1]

    def dealt(self, position: int) -> int:
        # Only differences count, and only from the begin of this number of ranks on.
        return turns(position - self._begin, self._rank, self._size) if position > self._begin else 0

    def pick(self, own: Rows) -> Rows:
        owners = np.full_like(own, self._rank)
        for turn in reversed(range(1, len(self._history))):
            own, owners = self._before(turn, self._places(turn, owners, own))
        size, _ = self._history[0]
        if self._sorted is None:
            places = self._shuffled(0, owners, own)
            return owners + size * places
        return self._sorted[self._places(0, owners, own)]

    def _shuffled(self, turn: int, owners: Rows, own: Rows) -> Rows:
        """Where, from the begin of its owner's part, each of these samples of the owners' orders is."""
        size, begin = self._history[turn]
        places = np.empty_like(own)
        for rank in np.unique(owners).tolist():
            mine = owners == rank
            count = turns(self._samples - begin, rank, size)
            places[mine] = Permutation(count, *self._key, turn, rank)(own[mine])
        return places

    def _places(self, turn: int, owners: Rows, own: Rows) -> Rows:
        """The same in the list of which each rank has a consecutive part."""
        size, begin = self._history[turn]
        small, larger = divmod(self._samples - begin, size)
        return owners * small + np.minimum(owners, larger) + self._shuffled(turn, owners, own)

    def _before(self, turn: int, places: Rows) -> tuple[Rows, Rows]:
        """Whose these places in the list of samples left at the begin of `turn` were, and where in the owners' orders.

        In the list are, of each rank of the turn before, the samples that it had not used.
        """
        position = self._history[turn][1]
        size, begin = self._history[turn - 1]
        used = np.array([turns(position - begin, rank, size) for rank in range(size)])
        ends = np.cumsum([turns(self._samples - begin, rank, size) - used[rank] for rank in range(size)])
        owners = np.searchsorted(ends, places, side="right").astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]])
        return places - starts[owners] + used[owners], owners
