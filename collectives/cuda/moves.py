"""What a rank copies and folds in a call whose ranks read each other's memory, as lists of addresses.

A rank writes its own result only. It owns one block of the vector: in an all-reduce it folds that block of all ranks,
and then reads the other blocks from their owners. So it reads about twice the length of the vector, and writes it once.
In place, nothing is overwritten that another rank has yet to read: in round 1 only the owner of a block reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ROUNDS", "Move", "blocks", "rounds"]

#: The collectives that are served, and the rounds of each. All ranks end a round before one begins the next.
ROUNDS = {"allreduce": 2, "bcast": 2, "reduce_scatter": 1, "allgather": 1, "alltoall": 1}
_VECTOR = 16  # bytes that a thread of a kernel reads at once


class Move(NamedTuple):
    """``nbytes`` bytes at ``target`` become those at the source, or the fold of those at several ``sources``."""

    target: int
    sources: list[int]
    nbytes: int


def blocks(nbytes: int, itemsize: int, size: int) -> list[int]:
    """The boundaries, in bytes, of blocks that ``size`` ranks own, which begin where vectors of elements do."""
    unit = itemsize * _VECTOR
    units = nbytes // unit
    return [units * r // size * unit for r in range(size)] + [nbytes]


def rounds(
    base: str, rank: int, root: int, cuts: Sequence[int], sources: Sequence[int], targets: Sequence[int]
) -> list[list[Move]]:  # fmt: skip
    """The moves of ``rank`` in each round; ``cuts`` are the boundaries of the blocks of the vector in bytes.

    ``sources`` and ``targets`` are the addresses of all ranks' inputs and results, as this rank reads them.
    """
    size, own = len(cuts) - 1, targets[rank]
    begin, length = cuts[rank], cuts[rank + 1] - cuts[rank]
    others = [(rank + i) % size for i in range(1, size)]  # so that ranks begin with different neighbours
    from_owners = [Move(own + cuts[i], [targets[i] + cuts[i]], cuts[i + 1] - cuts[i]) for i in others]
    match base:
        case "allreduce":
            found = [[Move(own + begin, [source + begin for source in sources], length)], from_owners]
        case "bcast":
            first = [] if rank == root else [Move(own + begin, [sources[root] + begin], length)]
            found = [first, [] if rank == root else from_owners]
        case "reduce_scatter":
            found = [[Move(own, [source + begin for source in sources], length)]]
        case "allgather":
            found = [[Move(own + cuts[i], [sources[i]], cuts[i + 1] - cuts[i]) for i in [rank, *others]]]
        case _:  # alltoall
            found = [[Move(own + cuts[i], [sources[i] + begin], length) for i in [rank, *others]]]
    return [[move for move in moves if move.nbytes and move.sources != [move.target]] for moves in found]
