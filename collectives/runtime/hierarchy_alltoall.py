"""Hierarchical all-to-alls: one exchange on each node, one between nodes on every lane, and one more on some nodes.

The destinations on each node are divided among the lanes: member i of a node receives from other nodes for the i-th
group of its node's ranks (with as many members as ranks, for itself). In the table j is a node, d a rank of it that
receives, a the rank that sends, and i a lane. (j, d) is an array of blocks in which d varies fastest:

    copy      the blocks for lane 0, for lane 1, ...               (j, d)    -> (i, j, d)
    node      member i gets the blocks of all ranks for lane i     (i, j, d) -> (a, j, d)
    copy      by node                                              (a, j, d) -> (j, a, d)
    lane      exchange between the nodes                           (j, a, d) -> (j, a, d) of the nodes j that sent
    transpose by destination                                       (j, a, d) -> (d, j, a)
    node      each rank gets its blocks from its member            (d, j, a) -> (j, a)
    copy      from the order of the nodes to that of the ranks     (j, a)    -> (a)

Copies that would change nothing are left out, and so is the second exchange on a node all of whose ranks are members.
The transposition is left out on a member that receives for one rank. So a block crosses a link between nodes once, with
those of other ranks of the node in one message (Traeff 2019, arXiv 1910.13373, on lanes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..arguments.shape import Shape
from ..core import _core
from .hierarchy_blocks import Blocks, sums
from .hierarchy_parts import INPUT, SCRATCH, VECTOR, Call, Part, Place
from .nodes import Nodes

__all__ = ["CALLS"]


Step = Callable[[Place, Place, int], int]  # adds a part for source, target and the part before it; returns its index


class _Alltoall(Blocks):
    """An all-to-all with blocks of one length; each part reads what the one before it has written."""

    exchanges = True

    def __init__(self, nodes: Nodes, rank: int, shape: Shape):
        super().__init__(nodes, rank, shape)
        self.each = self.lengths[0]
        self.groups = [_core.partition(len(node), self.width) for node in nodes.ranks]  # of destinations, on each node
        self.number = self.members.index(rank) if rank in self.members else -1
        self.own_groups = self.groups[nodes.ranks.index(self.node)]
        self.served = self.sizes(self.number, [self.own_groups])[0] if self.number >= 0 else 0
        self.steps: list[Step] = []

    def _room(self) -> int:
        return 2 * self._half()

    def _half(self) -> int:
        """Elements of the longest of what parts read and write."""
        taken = len(self.node) * sum(self.sizes(self.number, self.groups)) * self.each if self.number >= 0 else 0
        return max(self.total, taken, self.served * self.total)

    @staticmethod
    def sizes(number: int, groups: Sequence[Sequence[int]]) -> list[int]:
        """The numbers of ranks in the groups of this number."""
        return [bounds[number + 1] - bounds[number] for bounds in groups]

    def across(self, k: int, first: int, count: int) -> None:
        """Add all parts, which have two places in turn: a part reads one and writes the other."""
        self.copy([self.each] * len(self.ranks), self.by_lane())
        if not self.alone:
            self.steps.append(self.to_member)
        if self.number >= 0:
            self.on_lanes()
        if self.width < len(self.node):
            self.steps.append(self.from_member)
        if not self.sorted:
            self.copy([self.each] * len(self.ranks), self.places())
        source, after = Place(INPUT, 0), -1
        for i, step in enumerate(self.steps, 1):
            target = Place(VECTOR, 0) if i == len(self.steps) else Place(SCRATCH, i % 2 * self._half())
            after = step(source, target, after)
            source = target

    def copy(self, lengths: Sequence[int], order: Sequence[int]) -> None:
        """Copy blocks with these lengths into another order, if it is another."""
        if list(order) != list(range(len(order))):
            self.steps.append(lambda source, target, after: self.copied(source, target, lengths, order, after))

    def by_lane(self) -> list[int]:
        """The ranks as destinations: those of lane 0 on every node, those of lane 1, ..."""
        pairs = list(zip(self.nodes.ranks, self.groups, strict=True))
        return [rank for i in range(self.width) for node, bounds in pairs for rank in node[bounds[i] : bounds[i + 1]]]

    def to_member(self, source: Place, target: Place, after: int) -> int:
        """Each member gets the blocks of its node's ranks for its lane."""
        leaving = [sum(self.sizes(i, self.groups)) * self.each for i in range(self.width)]
        arriving = leaving[self.number] if self.number >= 0 else 0
        cuts, input_cuts = sums([arriving] * len(self.node)), sums(leaving + [0] * (len(self.node) - self.width))
        return self.on_node("alltoall", self.root, source, target, cuts[-1], after, cuts, input_cuts)

    def on_lanes(self) -> None:
        """Add the exchange between nodes, and the copies around it."""
        senders, nodes = len(self.node), self.nodes.ranks
        leaving = [served * self.each for served in self.sizes(self.number, self.groups)]
        order = [a * len(nodes) + j for j in range(len(nodes)) for a in range(senders)]
        self.copy(leaving * senders, order)
        cuts = sums([len(node) * self.served * self.each for node in nodes])
        input_cuts = sums([senders * length for length in leaving])

        def exchange(source: Place, target: Place, after: int) -> int:
            return self.add(
                Part("alltoall", self.lane, self.root, source, target, cuts[-1], cuts, 0, after, input_cuts)
            )

        self.steps.append(exchange)
        if self.served > 1:
            self.steps.append(self.by_destination)

    def by_destination(self, source: Place, target: Place, after: int) -> int:
        """The blocks for each rank that this member serves follow each other."""
        matrix = len(self.ranks), self.served, self.each
        part = Part("transpose", (self.rank,), self.rank, source, target, self.served * self.total, after=after)
        return self.add(part._replace(matrix=matrix))

    def from_member(self, source: Place, target: Place, after: int) -> int:
        """Each rank gets its blocks from the member that received them."""
        first, end = self.own_groups[self.number : self.number + 2] if self.number >= 0 else (0, 0)
        there = self.node.index(self.rank)
        leaving = [self.total * (first <= t < end) for t in range(len(self.node))]
        group = next(i for i in range(self.width) if there < self.own_groups[i + 1])
        cuts = sums([self.total * (member == self.node[: self.width][group]) for member in self.node])
        return self.on_node("alltoall", self.root, source, target, cuts[-1], after, cuts, sums(leaving))


CALLS: dict[str, type[Call]] = {"alltoall": _Alltoall}
