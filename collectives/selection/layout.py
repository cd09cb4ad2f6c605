"""The layout of the ranks of a communicator, by which entries of a selection table are found."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

__all__ = ["Layout"]

NEAR = 2  # an entry serves layouts whose numbers differ by this factor at most


@dataclass(frozen=True)
class Layout:
    """The layout of the ranks of a communicator: numbers of nodes, of ranks on the node with most ranks, and of ranks.

    The last is by default that of as many ranks on every node.
    """

    nodes: int
    ranks_per_node: int
    ranks: int = 0

    def __post_init__(self) -> None:
        if not self.ranks:
            object.__setattr__(self, "ranks", self.nodes * self.ranks_per_node)

    @staticmethod
    def of(ranks_on: Counter[str]) -> Layout:
        """The layout of a communicator with ``ranks_on[node]`` ranks on each node."""
        return Layout(len(ranks_on), max(ranks_on.values()), sum(ranks_on.values()))

    def __str__(self) -> str:
        even = self.ranks == self.nodes * self.ranks_per_node
        most = self.ranks_per_node if even else f"{self.ranks_per_node} at most, {self.ranks} ranks"
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''} x {most}"

    def distance(self, other: Layout) -> tuple[float, float]:
        """How far two layouts are from each other; infinite if what was measured on one says nothing of the other.

        That is so for one node and several, and if the numbers of nodes, or of ranks on one, differ by more than a
        factor of 2. The second number is how far the numbers of ranks are, which decides between equals.
        """
        pairs = (self.nodes, other.nodes), (self.ranks_per_node, other.ranks_per_node), (self.ranks, other.ranks)
        nodes, most, ranks = (abs(math.log(x / y)) for x, y in pairs)
        far = (self.nodes == 1) != (other.nodes == 1) or max(nodes, most) > math.log(NEAR) + 1e-9
        return math.inf if far else nodes + most, ranks
