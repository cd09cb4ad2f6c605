"""Which part of a whole array each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..agree import same_as_rank_0
from ..flat.memory import cut as even_sizes


def place(comm: Any) -> tuple[int, int]:
    """This rank and the number of ranks of `comm`. None stands for a rank alone."""
    return (0, 1) if comm is None else (comm.rank, comm.size)


@dataclass(frozen=True)
class Cut:
    """The cut of an array along ``axis``: rank r has ``sizes[r]`` of its elements, which follow those of rank r - 1.

    The axis may be negative, and then counts from the last one. Arrays may be NumPy's or torch's.
    """

    axis: int
    sizes: tuple[int, ...]

    @classmethod
    def even(cls, axis: int, total: int, ranks: int) -> Cut:
        """The cut of `total` elements into sizes that differ by at most 1, larger ones first; some may be 0."""
        return cls(axis, tuple(even_sizes(total, ranks)))

    @property
    def total(self) -> int:
        """The length of the whole axis."""
        return sum(self.sizes)

    def start(self, rank: int) -> int:
        """Where the part of `rank` begins."""
        return sum(self.sizes[:rank])

    def part(self, whole: Any, rank: int) -> Any:
        """The part of `rank` of an array or tensor, as a view. ValueError unless the axis has ``total`` elements."""
        axis = self.axis % whole.ndim
        if whole.shape[axis] != self.total:
            raise ValueError(f"axis {self.axis} of {tuple(whole.shape)} should have {self.total} elements")
        mine = slice(self.start(rank), self.start(rank) + self.sizes[rank])
        return whole[(slice(None),) * axis + (mine,)]

    def times(self, count: int, axis: int) -> Cut:
        """The cut of `axis` of an array that has `count` elements there for each element here."""
        return Cut(axis, tuple(size * count for size in self.sizes))


def agreed(axis: int, length: int, comm: Any) -> Cut:
    """The cut of which each rank knows its own `length` only. Collective: an all-gather of 8 bytes per rank."""
    sizes = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([length], np.int64), sizes)
    return Cut(axis, tuple(int(size) for size in sizes))


def layer_cut(
    layer: str, what: str, total: int, comm: Any, sizes: Sequence[int] | None = None, axis: int = 0, **settings: Any
) -> Cut:
    """The cut of a layer's `total` outputs, heads or the like (`what`), even unless `sizes` are given. Collective.

    Raises ValueError on all ranks if the ranks' layers differ, also in further `settings`, if a rank would get nothing,
    or if `sizes` do not fit.
    """
    _, ranks = place(comm)
    given = None if sizes is None else tuple(int(size) for size in sizes)
    if comm is not None:
        same_as_rank_0(comm, {what: total, "sizes": given, **settings}, layer)
    cut = Cut.even(axis, total, ranks) if given is None else Cut(axis, given)
    if len(cut.sizes) != ranks or cut.total != total:
        raise ValueError(f"{layer}: sizes {list(cut.sizes)} are no cut of {total} {what} over {ranks} ranks")
    if min(cut.sizes) < 1:
        raise ValueError(f"{layer}: {total} {what} over {ranks} ranks, {list(cut.sizes)}: each rank needs at least 1")
    return cut
