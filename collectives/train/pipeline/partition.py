"""Where a model is cut: by hand, or so that the most expensive stage is as cheap as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["BALANCES", "balanced", "bounds_of"]

BALANCES = ("parameters", "flops", "time")


def balanced(costs: Sequence[float], workers: Sequence[int]) -> list[int]:
    """Bounds that cut `costs`, one number for each block, into runs whose largest sum is as small as possible.

    Run i has the blocks from ``bounds[i]`` to ``bounds[i + 1]``, and at least one; its sum is shared by ``workers[i]``
    ranks. This is the linear partition problem, solved exactly by dynamic programming in O(r n^2) steps for r runs of n
    blocks. Among equal solutions the earlier runs are the shorter ones. Raises ValueError if there are fewer blocks
    than runs, or a negative cost.
    """
    count, parts = len(costs), len(workers)
    if not 1 <= parts <= count:
        raise ValueError(f"{count} blocks cannot be cut into {parts} stages of at least one block")
    if any(not cost >= 0 for cost in costs):
        raise ValueError("the costs of blocks must not be negative")
    sums = [0.0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    # best[k][n]: the largest sum if the first n blocks are cut into k + 1 runs
    best = [[total / workers[0] for total in sums]]
    cuts: list[list[int]] = [[0] * (count + 1)]
    for part in range(1, parts):
        row, where = [float("inf")] * (count + 1), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            for start in range(part, end):
                largest = max(best[part - 1][start], (sums[end] - sums[start]) / workers[part])
                if largest < row[end]:
                    row[end], where[end] = largest, start
        best.append(row)
        cuts.append(where)
    bounds = [count]
    for part in range(parts - 1, 0, -1):
        bounds.append(cuts[part][bounds[-1]])
    return [0, *reversed(bounds)]


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
