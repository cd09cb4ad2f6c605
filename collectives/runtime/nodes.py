"""The nodes of a communicator that spans several, and the lanes between them.

The members of a node are ``width`` of its ranks, as many on every node. Lane i has the i-th member of each node. A
lane is a list of ranks, not a communicator of MPI's. Ranks that are no members take part on their node only.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Nodes"]


@dataclass(frozen=True)
class Nodes:
    """The ranks of each node in ascending order; the nodes in the order of their lowest ranks."""

    ranks: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(numbers: Sequence[int]) -> Nodes:
        """The nodes if ``numbers[i]`` is the number of the node of rank i."""
        found: dict[int, array.array[int]] = {}
        for rank, number in enumerate(numbers):
            found.setdefault(number, array.array("i")).append(rank)
        return Nodes(tuple(map(tuple, found.values())))

    @functools.cached_property
    def width(self) -> int:
        """The most lanes: the number of ranks of the smallest node."""
        return min(map(len, self.ranks))

    @functools.cached_property
    def obstacle(self) -> str | None:
        """Why no call can be hierarchical, or None."""
        if len(self.ranks) == 1:
            return "all ranks share a node, which algorithm 'shm' serves"
        if max(map(len, self.ranks)) == 1:
            return "no two ranks share a node"
        return None

    def node_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the node of ``rank``."""
        return next(node for node in self.ranks if rank in node)

    def members(self, node: tuple[int, ...], width: int, root: int) -> tuple[int, ...]:
        """The members of ``node`` in ascending order: its first ranks, but the ``root`` in any case, if it is there."""
        if root in node[width:]:
            return (*node[: width - 1], root)
        return node[:width]

    def lane(self, number: int, width: int, root: int) -> tuple[int, ...]:
        """The ranks of a lane, a member of each node. All lanes together have one rank of each node ``width`` times."""
        return tuple(self.members(node, width, root)[number] for node in self.ranks)
