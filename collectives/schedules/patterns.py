"""Peer arithmetic: which ranks communicate, without messages or data. Ranks are ints or integer arrays, sizes ints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = Any


def ceil_log2(size: int) -> int:
    """Smallest k with ``2**k >= size``."""
    return (size - 1).bit_length()


def floor_power_of_two(size: int) -> int:
    """Largest power of two that is at most ``size``."""
    return 1 << (size.bit_length() - 1)


def ring(rank: Ints, size: int) -> tuple[Ints, Ints]:
    """The left and the right neighbour of ``rank`` on a ring."""
    return (rank - 1) % size, (rank + 1) % size


def doublings(size: int) -> list[int]:
    """The distances 1, 2, 4, ... below ``size``."""
    return [1 << k for k in range(ceil_log2(size))]


def survivors(size: int, target: int) -> np.ndarray:
    """The ranks, ascending, that remain when ``size`` is folded to ``target``; ``size / 2 <= target <= size``.

    The first ``2 * (size - target)`` ranks form pairs (even, odd). The odd rank of each pair remains, and so do all
    later ranks.
    """
    rem = size - target
    return np.concatenate((np.arange(1, 2 * rem, 2), np.arange(2 * rem, size)))


def shares(size: int, target: int, first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The blocks, as (first, number), of the remaining ranks ``first .. first + count - 1`` and of their partners."""
    rem = size - target
    begin, end = first + np.minimum(first, rem), first + count + np.minimum(first + count, rem)
    return begin, end - begin


def factors(size: int, merged: int = 4) -> list[int]:
    """Prime factors of ``size``, largest first; small ones are multiplied as long as the product is <= ``merged``.

    >>> factors(60), factors(32), factors(1)
    ([5, 4, 3], [4, 4, 2], [])
    """
    primes = []
    divisor = 2
    while divisor * divisor <= size:
        while size % divisor == 0:
            primes.append(divisor)
            size //= divisor
        divisor += 1
    primes += [size] * (size > 1)
    found: list[int] = []
    for prime in primes:  # ascending, so that small primes are multiplied with equal ones first
        if found and found[-1] * prime <= merged:
            found[-1] *= prime
        else:
            found.append(prime)
    return sorted(found, reverse=True)


def largest_smooth(size: int, limit: int = 7) -> int:
    """Largest number <= ``size`` without a prime factor above ``limit``; it is above ``size / 2``."""
    smooth = {1}
    for divisor in range(2, limit + 1):  # multiplying by one that is no prime finds nothing new
        power = divisor
        while power <= size:
            smooth |= {number * divisor for number in smooth if number * divisor <= size}
            power *= divisor
    return max(smooth)


def bit_reversed(rank: Ints, size: int) -> Ints:
    """``rank`` with its log2(``size``) bits in reverse order; ``size`` is a power of two."""
    result = 0 * rank
    for distance in doublings(size):
        result = 2 * result + rank // distance % 2
    return result


def circulant_skips(size: int) -> Iterator[tuple[int, int]]:
    """Pairs (distance, blocks sent) of the rounds of the circulant reduce-scatter: ``size`` is halved, rounding up.

    >>> list(circulant_skips(6))
    [(3, 3), (2, 1), (1, 1)]
    """
    while size > 1:
        skip = (size + 1) // 2
        yield skip, size - skip
        size = skip


@dataclass(frozen=True)
class Tree:
    """The surroundings of some positions in a binary tree over positions 0..size-1; -1: no parent, no child.

    ``level`` is log2 of the lowest set bit: 0 for leaves; every child has a lower level than its parent.
    """

    level: Ints
    parent: Ints
    children: tuple[Ints, Ints]


def in_order_level(position: Ints, size: int) -> Ints:
    """Level of a position in the in-order tree; position 0, the root, has level ceil(log2(``size``))."""
    bit = np.where(position == 0, 1 << ceil_log2(size), position & -position)
    return np.rint(np.log2(bit)).astype(np.int64)


def in_order_tree(position: Ints, size: int) -> Tree:
    """The tree of Sanders, Speck, Traeff (2009) with in-order numbers: root 0 has one child, odd positions are leaves.

    Positions in the left subtree of a node are lower than the node's, in the right subtree higher.
    """
    level = in_order_level(position, size)
    bit = np.left_shift(1, level)
    up = (position ^ bit) | 2 * bit
    parent = np.where(up < size, up, position ^ bit)
    low = bit // 2
    left = np.where((low > 0) & (position > 0), position - low, -1)
    while np.any(position + low >= size):
        low = np.where(position + low >= size, low // 2, low)
    right = np.where(low > 0, position + low, -1)
    return Tree(level, np.where(position == 0, -1, parent), (left, right))
