"""Fold trees over the ranks' contributions, as numbers: two folds have the same number if their trees are equal."""

from __future__ import annotations

__all__ = ["FoldError", "Folds", "rank_set"]


class FoldError(ValueError):
    """Two folds cannot be joined: they share a contribution, or belong to different blocks."""


class Folds:
    """All fold trees made so far, as small integers. With ``idempotent``, both operands may have a contribution.

    A tree is ``ordered`` if its leaves, from left to right, are in rank order. It is ``linear`` if it is also of the
    form ``((a op b) op c) ...``. Equal operands give equal trees; the order of the operands matters.
    """

    def __init__(self, *, idempotent: bool = False):
        self.idempotent = idempotent
        self.block: list[int] = []
        self.ranks: list[int] = []  # bit r is set if the contribution of rank r is in the tree
        self.ordered: list[bool] = []
        self.linear: list[bool] = []
        self.parts: list[tuple[int, int]] = []  # (left, right); for a leaf (-1 - rank, block)
        self.made: list[tuple[int, int]] = []  # rank and round that first made the tree
        self._known: dict[tuple[int, int], int] = {}

    def leaf(self, rank: int, block: int) -> int:
        """The fold that is only the contribution of ``rank`` to ``block``."""
        key = -1 - rank, block
        found = self._known.get(key)
        return self._enter(key, block, 1 << rank, True, True, (rank, -1)) if found is None else found

    def join(self, left: int, right: int, place: tuple[int, int] = (-1, -1)) -> int:
        """The fold ``left op right``, made at ``place``, a pair (rank, round); raises :class:`FoldError`."""
        found = self._known.get((left, right))
        if found is not None:
            return found
        a, b = self.ranks[left], self.ranks[right]
        if self.block[left] != self.block[right]:
            raise FoldError(f"reduces block {self.block[left]} with block {self.block[right]}")
        if a & b and not self.idempotent:
            raise FoldError(f"reduces the contribution of rank {rank_set(a & b)} a second time")
        after = a < (b & -b)  # every rank of the left operand is below every rank of the right one
        ordered = after and self.ordered[left] and self.ordered[right]
        linear = ordered and self.linear[left] and self.parts[right][0] < 0
        return self._enter((left, right), self.block[left], a | b, ordered, linear, place)

    def culprit(self, fold: int) -> tuple[int, int]:
        """Rank and round of the reduction that broke the rank order in ``fold``, which is not ordered."""
        for part in self.parts[fold]:
            if not self.ordered[part]:
                return self.culprit(part)
        return self.made[fold]

    def text(self, fold: int) -> str:
        """The tree as text, e.g. ``((0 1) 2)``."""
        left, right = self.parts[fold]
        return str(-1 - left) if left < 0 else f"({self.text(left)} {self.text(right)})"

    def _enter(
        self, key: tuple[int, int], block: int, ranks: int, ordered: bool, linear: bool, place: tuple[int, int]
    ) -> int:
        self.block.append(block)
        self.ranks.append(ranks)
        self.ordered.append(ordered)
        self.linear.append(linear)
        self.parts.append(key)
        self.made.append(place)
        self._known[key] = len(self.block) - 1
        return self._known[key]


def rank_set(ranks: int) -> str:
    """The ranks of a bit mask as text, with runs abbreviated.

    >>> rank_set(0b101111), rank_set(0)
    ('0-3,5', '')
    """
    runs: list[list[int]] = []
    for rank in range(ranks.bit_length()):
        if ranks >> rank & 1:
            if runs and runs[-1][1] == rank - 1:
                runs[-1][1] = rank
            else:
                runs.append([rank, rank])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
