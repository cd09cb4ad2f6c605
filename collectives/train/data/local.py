"""Which of an epoch's samples are whose, where every rank has a data set of its own."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .deals import Deal
from .permutation import Permutation
from .sources import Rows


class Part(NamedTuple):
    """A rank's own data set: rows; a digest of a few, or None; the number of its order; rows used when p changed."""

    rows: int
    content: str | None
    order: int
    used: int

    def like(self, other: Part) -> bool:
        """Whether they can be the same data set."""
        return self.rows == other.rows and (self.content == other.content or None in (self.content, other.content))


class Local:
    """Samples that stay on their ranks. A step's samples are shared in proportion to what the ranks have left.

    With m samples left on a rank, its j-th of these, from 0, has the key (j + 1/2) / m. The i-th sample of an epoch is
    the one with the i-th smallest key of all ranks; of equal keys, the lower rank's comes first. These are the shares
    by Webster's method, in which nobody's share of more samples is ever smaller.
    """

    def __init__(self, parts: list[Part], seed: int) -> None:
        self.parts, self._seed = parts, seed
        self._begin = 0  # position from which on these ranks share the samples
        self._known: dict[int, Part] = {}  # by order: the data sets of these ranks and of those before a `move`

    @property
    def samples(self) -> int:
        """Samples of all ranks."""
        return sum(part.rows for part in self.parts)

    def begin(self, size: int) -> None:
        """Nothing is used yet."""
        self.parts, self._begin = [part._replace(used=0) for part in self.parts], 0

    def deal(self, epoch: int, rank: int, size: int) -> Deal:
        """A rank's own samples."""
        return _LocalDeal(self.parts, self._begin, rank, (self._seed, epoch))

    def used(self, position: int) -> list[int]:
        """How many samples of each rank are among the epoch's first `position`."""
        left = np.array([part.rows - part.used for part in self.parts])
        return [p.used + int(n) for p, n in zip(self.parts, shares(left, position - self._begin), strict=True)]

    def move(self, parts: list[Part]) -> None:
        """The ranks are now those that have these of the data sets. What they have used is in the state that is loaded
        next. It may be a state of the ranks before, since each data set keeps its order.

        ValueError if two ranks have one data set, as a new rank and an old one may.
        """
        if len({part.order for part in parts}) < len(parts):
            raise ValueError("new ranks cannot go on with the samples that other ranks had for themselves")
        self._known = self._known | {part.order: part for part in (*self.parts, *parts)}
        self.parts = parts

    def _go_on(self, ranks: list[int], position: int) -> int:
        """Only the samples of these ranks are left, and only what these ranks have used counts for the position."""
        if ranks == list(range(len(self.parts))):
            return position
        used = self.used(position)
        self.parts = [self.parts[rank]._replace(used=used[rank]) for rank in ranks]
        self._begin = sum(part.used for part in self.parts)
        return self._begin

    def _before(self, saved: list[Part]) -> list[int] | None:
        """The numbers of these ranks in a state from before a `move`; None if it may be the state of others."""
        places = {part.order: rank for rank, part in enumerate(saved)}
        known = all(part.order in self._known and part.like(self._known[part.order]) for part in saved)
        known = known and all(part.order in places for part in self.parts)
        return [places[part.order] for part in self.parts] if known else None

    def state_dict(self) -> dict[str, Any]:
        """The data sets, what was used of each when these ranks began to share samples, and the position then."""
        return {"parts": [list(part) for part in self.parts], "begin": self._begin}

    def load_state_dict(self, state: Mapping[str, Any], size: int, position: int) -> int:
        """Take over a saved epoch.

        Raises ValueError, within an epoch, if a rank's data set is none of those that were saved, or may be several
        and the state is not from before a `move`.
        """
        saved = Local([Part(*part) for part in state["parts"]], self._seed)
        saved._begin = int(state["begin"])
        if not 0 <= saved._begin <= position <= saved.samples:
            raise ValueError(f"the saved position {position} is impossible for {saved.samples} samples")
        ranks = self._before(saved.parts)
        if ranks is None:
            same = len(saved.parts) == size
            same = same and all(part.like(other) for part, other in zip(self.parts, saved.parts, strict=True))
            if position == 0 and not same:
                self.begin(size)
                return 0
            ranks = list(range(size)) if same else _found(self.parts, saved.parts)
            self._known = {}  # from here on, orders are those that were saved
        position = saved._go_on(ranks, position)
        self.parts, self._begin = saved.parts, saved._begin
        return position


def _found(parts: list[Part], saved: list[Part]) -> list[int]:
    """The numbers of the saved ranks that had the data sets of these ranks. ValueError if that is not certain."""
    candidates = [[old for old, other in enumerate(saved) if part.like(other)] for part in parts]
    if len(saved) == len(parts) and [] in candidates:
        rank = candidates.index([])
        was, now = saved[rank].rows, parts[rank].rows
        how = f"it had {was} samples, now {now}" if was != now else "some of its samples have other values"
        raise ValueError(f"the data set of rank {rank} has changed since the position was saved: {how}")
    for rank, (part, whose) in enumerate(zip(parts, candidates, strict=True)):
        if len(whose) != 1 or whose in candidates[:rank]:
            why = f"like those of the saved ranks {whose}" if whose else "none of the saved ones"
            raise ValueError(
                f"{len(parts)} ranks cannot go on within an epoch that {len(saved)} began: the data set of rank "
                f"{rank}, of {part.rows} samples, is {why}, so its used samples are not known"
            )
    return [rank for (rank,) in candidates]


def shares(left: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How many of the first `count` samples are each rank's, if ``left[r]`` samples of rank r are to be shared."""
    total = int(left.sum())
    if count >= total:
        return left.copy()
    sizes = np.maximum(left, 1).astype(np.float64)
    bound = count / total
    # Whose keys are at most `bound`? Rounding may put one too many or too few, and the keys decide.
    taken = np.clip(np.floor(left * bound + 0.5).astype(np.int64), 0, left)
    taken -= (taken > 0) & ((taken - 0.5) / sizes > bound)
    taken += (taken < left) & ((taken + 0.5) / sizes <= bound)
    missing = count - int(taken.sum())
    step, edge = (1, 0.5) if missing > 0 else (-1, -0.5)
    keys = [
        (step * (n + edge) / m, step * rank, rank)
        for rank, (n, m) in enumerate(zip(taken.tolist(), sizes.tolist(), strict=True))
        if (n < left[rank] if missing > 0 else n > 0)
    ]
    heapq.heapify(keys)
    for _ in range(abs(missing)):
        _, _, rank = heapq.heappop(keys)
        taken[rank] += step
        if 0 < taken[rank] < left[rank]:
            heapq.heappush(keys, (step * (taken[rank] + edge) / sizes[rank], step * rank, rank))
    return taken


class _LocalDeal:
    def __init__(self, parts: list[Part], begin: int, rank: int, key: tuple[int, int]) -> None:
        part = parts[rank]
        self._left = np.array([other.rows - other.used for other in parts])
        self._begin, self._rank, self._used = begin, rank, part.used
        self._order = Permutation(part.rows, *key, part.order)

    def dealt(self, position: int) -> int:
        return int(shares(self._left, position - self._begin)[self._rank]) if position > self._begin else 0

    def pick(self, own: Rows) -> Rows:
        return self._order(self._used + own)
