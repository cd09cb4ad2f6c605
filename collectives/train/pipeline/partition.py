"""Where a model is cut: by hand, or so that the most expensive stage is as cheap as it can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import add
from typing import Any

__all__ = ["BALANCES", "balanced", "bounds_of"]

BALANCES = ("parameters", "flops", "time")


def balanced(costs: Sequence[float], workers: Sequence[int], parameters: Sequence[float] | None = None) -> list[int]:
    """Bounds that cut `costs`, one number for each block, into runs whose largest sum is as small as possible.

    Run i has the blocks from ``bounds[i]`` to ``bounds[i + 1]``, and at least one; its sum is shared by ``workers[i]``
    ranks. Among equal solutions as few runs as possible have no parameters, of which `parameters` has the number in
    each block (default: `costs`); then the earlier runs are the shorter ones. Raises ValueError if there are fewer
    blocks than runs, or a negative cost.
    """
    count, parts = len(costs), len(workers)
    if not 1 <= parts <= count:
        raise ValueError(f"{count} blocks cannot be cut into {parts} stages of at least one block")
    if any(not cost >= 0 for cost in costs):
        raise ValueError("the costs of blocks must not be negative")
    sums = list(accumulate(costs, initial=0.0))
    held = costs if parameters is None else parameters
    filled = list(accumulate((number > 0 for number in held), initial=0))  # blocks with parameters before each block

    def share(part: int, start: int, end: int) -> float:
        return (sums[end] - sums[start]) / workers[part]

    def idle(part: int, start: int, end: int) -> float:
        return float(filled[start] == filled[end]) if share(part, start, end) <= least else inf

    least, bounds = _cheapest(count, parts, share, max)
    without = sum(idle(part, *run) for part, run in enumerate(pairwise(bounds)))
    if without:
        fewest, fuller = _cheapest(count, parts, idle, add)
        if fewest < without:
            return fuller
    return bounds


def _cheapest(
    count: int, parts: int, cost: Callable[[int, int, int], float], join: Callable[[float, float], float]
) -> tuple[float, list[int]]:
    """The least cost of `count` blocks in so many runs, and the bounds of the runs.

    ``cost(part, start, end)`` is that of a run, and `join` adds it to the cost of the runs before it. This is the
    linear partition problem, solved exactly by dynamic programming in O(r n^2) steps for r runs of n blocks.
    """
    # best[n]: the least cost if the first n blocks are cut into the runs so far
    best = [cost(0, 0, end) for end in range(count + 1)]
    cuts: list[list[int]] = []
    for part in range(1, parts):
        row, where = [inf] * (count + 1), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            for start in range(part, end):
                joined = join(best[start], cost(part, start, end))
                if joined < row[end]:
                    row[end], where[end] = joined, start
        best = row
        cuts.append(where)
    bounds = [count]
    for where in reversed(cuts):
        bounds.append(where[bounds[-1]])
    return best[count], [0, *reversed(bounds)]


def bounds_of(cut: Any, count: int, parts: int) -> list[int]:
    """Bounds from the first block of every stage but the first one, as given by hand.

    Raises ValueError unless these are ``parts - 1`` rising numbers of blocks that leave no stage empty.
    """
    bounds = [0, *(int(first) for first in cut), count]
    if len(bounds) != parts + 1:
        raise ValueError(f"cut names the first blocks of {len(bounds) - 2} stages after the first, not of {parts - 1}")
    if any(begin >= end for begin, end in zip(bounds, bounds[1:], strict=False)):
        raise ValueError(f"cut {list(cut)} leaves a stage without one of the {count} blocks")
    return bounds
