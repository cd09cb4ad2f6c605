"""``SumTree``: numbers whose prefix sums are found, and which are changed, in logarithmic time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class SumTree:
    """`size` numbers, not negative, at first 0; each node of a binary tree over them has the sum of its two children.

    Methods work on arrays of indices, level by level. A node is computed from its children and never changed by a
    difference, so that rounding errors do not add up.
    """

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a sum tree has at least 1 number, not {size}")
        self.size = size
        self._depth = (size - 1).bit_length()
        self._first = 1 << self._depth  # the node of number 0; node 1 is the root, nodes 2 i and 2 i + 1 are under i
        self._nodes = np.zeros(2 * self._first)

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self._nodes[1])

    def get(self, indices: Any) -> NDArray[np.float64]:
        """The numbers of `indices`. IndexError for an index out of range."""
        return self._nodes[self._checked(indices) + self._first]

    def set(self, indices: Any, values: Any) -> None:
        """Set the numbers of `indices`; of equal indices the last one counts.

        ValueError for numbers that are negative or not finite, IndexError for an index out of range; nothing is changed
        then.
        """
        values = np.asarray(values, np.float64)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("the numbers of a sum tree are finite and not negative")
        nodes = self._checked(indices) + self._first
        self._nodes[nodes] = values
        for _ in range(self._depth):
            nodes >>= 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, sums: Any) -> Indices:
        """For each s of `sums` the index i with ``x_0 + ... + x_(i-1) <= s < x_0 + ... + x_i``.

        Its number is above 0, also where s is the total or is rounded. ValueError if all numbers are 0, or for sums
        outside of [0, total].
        """
        left = np.array(sums, np.float64, ndmin=1)
        if not self.total > 0:
            raise ValueError("all numbers of the sum tree are 0")
        if left.size and not (left.min() >= 0 and left.max() <= self.total):
            raise ValueError(f"sums from {left.min():g} to {left.max():g} are not in [0, {self.total:g}]")
        nodes = np.ones(left.shape, np.int64)
        for _ in range(self._depth):
            nodes *= 2
            below = self._nodes[nodes]
            right = (left >= below) & (self._nodes[nodes + 1] > 0)
            left -= np.where(right, below, 0.0)
            nodes += right
        return nodes - self._first

    def values(self) -> NDArray[np.float64]:
        """A copy of all numbers."""
        return self._nodes[self._first : self._first + self.size].copy()

    def _checked(self, indices: Any) -> Indices:
        found = np.array(indices, np.int64, ndmin=1)
        if found.size and not (found.min() >= 0 and found.max() < self.size):
            raise IndexError(f"indices from {found.min()} to {found.max()} of {self.size} numbers")
        return found
