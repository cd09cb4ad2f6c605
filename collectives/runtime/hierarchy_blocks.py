"""Hierarchical calls whose vector has a block for each rank: all-gather, reduce-scatter, gather and scatter.

The blocks of a node's ranks, one after the other, are its *region*. Each segment is a part of every region, and is cut
into slices, one for each member of a node; lane i moves the i-th slices of all regions.

    all-gather       each node gathers its own region; every lane gathers its slices of the regions; the nodes gather
                     the slices of the other regions
    reduce-scatter   the node reduces the slices of every region; every lane reduces them between the nodes, so that
                     each node has the slices of its own region; the node passes them to the owners of the blocks
    gather           the node passes its blocks to the members as slices; every lane gathers them on the root's node;
                     there the root gathers them. Lanes leave out the region of the root's node
    scatter          the same in the opposite direction

Where each rank of a node is a member, and there is one segment, slices are blocks, and nothing is passed. In regions,
the ranks are in the order of their nodes. If that is not the order of the ranks, the vector is copied into that order
before the other parts, or from it behind them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ..arguments.shape import Shape
from ..core import _core
from .hierarchy_parts import DEPTH, INPUT, MOST, SCRATCH, VECTOR, Call, Part, Place
from .nodes import Nodes

__all__ = ["CALLS", "Blocks", "sums"]

Range = tuple[int, int]  # first element, and the one behind the last


def sums(lengths: Sequence[int]) -> tuple[int, ...]:
    """The boundaries of blocks with these lengths."""
    return tuple(itertools.accumulate(lengths, initial=0))


def _length(part: Range) -> int:
    return part[1] - part[0]


def _within(bounds: Sequence[int], limits: Range) -> tuple[int, ...]:
    """The boundaries of what lies within the limits, counted from the first of them."""
    return tuple(min(max(bound, limits[0]), limits[1]) - limits[0] for bound in bounds)


class Blocks(Call):
    """A call whose vector has a block for each rank.

    Elements are counted in the order of the nodes. ``regions`` are those of the nodes, ``own`` the one of this rank's
    node, ``block`` is this rank's block. ``sorted``: this order is that of the ranks. ``reorders``: this rank copies
    the vector from one order to the other. ``short``: the one member of each node moves whole regions, so that nothing
    lies between the blocks of the lane. ``direct``: slices of the own region are the blocks of its ranks. ``rooted``:
    the region of the root's node is where it belongs when the lanes begin. ``exchanges``: each rank of a node has data
    for the whole region of every node.
    """

    exchanges = False
    rooted = False

    def __init__(self, nodes: Nodes, rank: int, shape: Shape):
        ranks = tuple(itertools.chain(*nodes.ranks))
        cuts = shape.cuts or tuple(_core.partition(shape.elements, len(ranks)))
        self.lengths = tuple(end - first for first, end in itertools.pairwise(cuts))  # of the blocks, by rank
        self.ranks, self.total = ranks, cuts[-1]
        bounds = sums([self.lengths[r] for r in ranks])
        starts = sums([len(node) for node in nodes.ranks])
        self.regions = [(bounds[a], bounds[b]) for a, b in itertools.pairwise(starts)]
        longest = max(end - first for first, end in self.regions)
        moved = longest * max(map(len, nodes.ranks)) if self.exchanges else longest  # from one node to another
        super().__init__(nodes, rank, shape, moved, max(1, MOST // len(nodes.ranks)))
        self.sorted = ranks == tuple(range(len(ranks)))
        if self.exchanges or not self.sorted:
            self.segments = [(0, longest)]
        self.short = self.width == 1 and len(self.segments) == 1
        here = nodes.ranks.index(self.node)
        self.own = self.regions[here]
        self.bounds = bounds[starts[here] : starts[here + 1] + 1]  # of the blocks of the own region
        i = self.node.index(rank)
        self.block = self.bounds[i], self.bounds[i + 1]
        self.direct = len(self.segments) == 1 and self.own_cuts(self.own) == self.bounds
        self.reorders = not self.sorted and (not self.rooted or rank == self.root)
        self.spare = self.total if self.reorders else 0  # the first element of scratch memory after such a copy
        self.slot = 0
        if self.lane:
            every = range(len(self.segments))
            self.slot = max(sum(map(_length, [*self.kept(k), self.slice_of(self.part_of_own(k))])) for k in every)

    def _room(self) -> int:
        return self.spare + min(DEPTH, len(self.segments)) * self.slot

    def ranges(self, k: int) -> list[Range]:
        """Segment k of every region; empty ones if the lanes leave out the region of the root's node."""
        found = []
        for node, (first, end) in zip(self.nodes.ranks, self.regions, strict=True):
            bounds = _core.partition(end - first, len(self.segments))
            left_out = self.rooted and self.root in node and not self.short
            found.append((first, first) if left_out else (first + bounds[k], first + bounds[k + 1]))
        return found

    def others(self, k: int) -> list[Range]:
        """Segment k of the regions of all other nodes."""
        return [part for part, node in zip(self.ranges(k), self.nodes.ranks, strict=True) if node != self.node]

    def part_of_own(self, k: int) -> Range:
        """Segment k of the own region."""
        return self.ranges(k)[self.nodes.ranks.index(self.node)]

    def own_cuts(self, part: Range) -> tuple[int, ...]:
        """The boundaries of this node's slices of a range."""
        return tuple(part[0] + cut for cut in self.cuts(part[1] - part[0]))

    def slice_of(self, part: Range) -> Range:
        """This rank's slice of a range."""
        cuts, i = self.own_cuts(part), self.node.index(self.rank)
        return cuts[i], cuts[i + 1]

    def slices(self, k: int) -> list[Range]:
        """This rank's slices of segment k of every region."""
        return [self.slice_of(part) for part in self.ranges(k)]

    def kept(self, k: int) -> list[Range]:
        """The slices of segment k that this rank keeps between parts, beside that of its own region."""
        return self.slices(k) if self.home or not self.rooted else []

    def across_lane(self, k: int, root: int, source: Place, target: Place, *, dense: bool) -> None:
        """Add the lane's part of segment k. ``dense``: its blocks are one after the other, not each in its region."""
        slices = self.slices(k)
        lengths = list(map(_length, slices))
        if self.short:
            cuts = sums(lengths)
        elif dense:
            cuts = sums([length for each in lengths for length in (0, each)] + [0])
        else:
            cuts = (0, *itertools.chain(*slices), self.total)
        name = self.shape.collective
        self.on_lane(k, name, root, source, target, sum(lengths), cuts, spaced=not self.short)

    def to_members(self, k: int, own: Place, target: Place, after: int) -> int:
        """Have each member get its slice of segment k of the blocks of the node, from the blocks at ``own``."""
        bounds, mine = self.own_cuts(self.part_of_own(k)), self.slice_of(self.part_of_own(k))
        leaving, arriving = _within(bounds, self.block), _within(self.bounds, mine)
        source = own.plus(leaving[0])
        leaving = tuple(cut - leaving[0] for cut in leaving)
        return self.on_node("alltoall", self.root, source, target, arriving[-1], after, arriving, leaving)

    def to_owners(self, k: int, source: Place, after: int) -> int:
        """Have each rank of the node get what members' slices of segment k, here at ``source``, have of its block."""
        bounds, mine = self.own_cuts(self.part_of_own(k)), self.slice_of(self.part_of_own(k))
        leaving, arriving = _within(self.bounds, mine), _within(bounds, self.block)
        target = Place(VECTOR, arriving[0])
        arriving = tuple(cut - arriving[0] for cut in arriving)
        return self.on_node("alltoall", self.root, source, target, arriving[-1], after, arriving, leaving)

    def slot_of(self, k: int) -> Place:
        """The scratch memory of segment k."""
        return Place(SCRATCH, self.spare + k % DEPTH * self.slot)

    def copied(
        self, source: Place, target: Place, lengths: Sequence[int], order: Sequence[int], after: int, run: int = 0
    ) -> int:
        """Add a copy of blocks with these lengths, the i-th of the target from block ``order[i]`` of the source."""
        cuts, input_cuts = sums([lengths[i] for i in order]), sums(lengths)
        copy = Part("copy", (self.rank,), self.rank, source, target, cuts[-1], cuts, run, after)
        return self.add(copy._replace(input_cuts=input_cuts, order=tuple(order)))

    def by_nodes(self) -> tuple[Place, int]:
        """The vector of the input in the order of the nodes, and the part that copies it there, or -1."""
        if self.sorted:
            return Place(INPUT, 0), -1
        return Place(SCRATCH, 0), self.copied(Place(INPUT, 0), Place(SCRATCH, 0), self.lengths, self.ranks, -1)

    def places(self) -> list[int]:
        """The number of each rank in the order of the nodes."""
        return sorted(range(len(self.ranks)), key=self.ranks.__getitem__)

    def by_ranks(self) -> None:
        """Copy the vector to the result, if it is not there."""
        if not self.sorted:
            lengths = [self.lengths[rank] for rank in self.ranks]
            self.copied(Place(SCRATCH, 0), Place(VECTOR, 0), lengths, self.places(), len(self.parts) - 1)

    def result(self) -> Place:
        """Where the vector is put together, in the order of the nodes."""
        return Place(SCRATCH if self.reorders else VECTOR, 0)

    def given(self) -> Place:
        """Where this rank's block is at first, in a call in which each rank has a block."""
        if self.shape.in_place:
            return Place(VECTOR, sum(self.lengths[: self.rank]))
        return Place(INPUT, 0)


class _Allgather(Blocks):
    """Each node gathers its region, the lanes gather their slices, the nodes the slices of the other regions."""

    def begin(self) -> None:
        cuts = _within(self.bounds, self.own)
        target = self.result().plus(self.own[0])
        self.ready = self.on_node("allgather", self.root, self.given(), target, cuts[-1], -1, cuts)

    def across(self, k: int, first: int, count: int) -> None:
        mine = self.slice_of(self.part_of_own(k))[0]
        source = self.given().plus(mine - self.own[0]) if self.alone else self.result().plus(mine)
        self.across_lane(k, self.root, source, self.result(), dense=False)

    def behind(self, k: int, first: int, count: int) -> None:
        after = self.landed.get(k, -1)
        if self.short:
            self.on_node("bcast", self.members[0], self.result(), self.result(), self.total, after)
            return
        for part in self.others(k):
            source = self.result().plus(self.slice_of(part)[0])
            self.on_node("allgather", self.root, source, self.result().plus(part[0]), part[1] - part[0], after)

    def end(self) -> None:
        self.by_ranks()


class _ReduceScatter(Blocks):
    """The node reduces slices, the lanes reduce them between the nodes, the node passes them to the blocks' owners."""

    def begin(self) -> None:
        self.source, self.there = self.by_nodes()

    def before(self, k: int, first: int, count: int) -> None:
        self.ready, target = self.there, self.slot_of(k)
        if self.alone:
            self.ready = self.together(k)
            return
        if self.short:
            self.ready = self.on_node("reduce", self.members[0], self.source, target, self.total, self.there)
            return
        for part in self.ranges(k):
            source, (mine, end) = self.source.plus(part[0]), self.slice_of(part)
            self.ready = self.on_node("reduce_scatter", self.root, source, target, part[1] - part[0], self.there)
            target = target.plus(end - mine)

    def together(self, k: int) -> int:
        """Have a rank alone on its node copy its slices to the slot, which the lane's run before has left.

        The plan of a lane has scratch memory for all that its blocks enclose, so these must follow each other.
        """
        if self.short:
            return self.there
        bounds = (0, *itertools.chain(*self.slices(k)), self.total, self.total)
        lengths = [end - first for first, end in itertools.pairwise(bounds)]
        slices, empty = len(self.regions), len(lengths) - 1  # the source has as many blocks as the target
        order = [*range(1, 2 * slices, 2), *([empty] * (len(lengths) - slices))]
        return self.copied(self.source, self.slot_of(k), lengths, order, self.there, k % DEPTH)

    def sum_of(self, k: int) -> Place:
        """Where the result of the lane is."""
        if self.direct or self.alone:
            return Place(VECTOR, self.part_of_own(k)[0] - self.own[0] if self.alone else 0)
        return self.slot_of(k).plus(sum(end - first for first, end in self.slices(k)))

    def across(self, k: int, first: int, count: int) -> None:
        source = self.source if self.alone and self.short else self.slot_of(k)
        self.across_lane(k, self.root, source, self.sum_of(k), dense=True)

    def behind(self, k: int, first: int, count: int) -> None:
        if not self.direct:
            self.to_owners(k, self.sum_of(k), self.landed.get(k, -1))


class _Gather(Blocks):
    """The node passes blocks to members as slices, the lanes gather these on the root's node, and there the root."""

    rooted = True

    def begin(self) -> None:
        self.emptied: dict[int, int] = {}  # the part that empties a slot, by segment
        if not self.home:
            return
        first, end = self.own
        cuts, target = _within(self.bounds, self.own), self.result().plus(self.own[0])
        self.ready = self.on_node("gather", self.root, self.given(), target, end - first, -1, cuts)
        if self.alone and not (self.sorted and self.shape.in_place):
            self.ready = self.copied(self.given(), target, [end - first], [0], -1)

    def before(self, k: int, first: int, count: int) -> None:
        if not self.home and not self.direct:  # the slot is free when it has been sent
            self.ready = self.to_members(k, self.given(), self.slot_of(k), self.landed.get(k - DEPTH, -1))
        elif k - DEPTH in self.emptied:
            self.ready = self.emptied[k - DEPTH]

    def across(self, k: int, first: int, count: int) -> None:
        source = self.slot_of(k)
        if self.alone or self.direct:
            source = self.given().plus(self.part_of_own(k)[0] - self.own[0] if self.alone else 0)
        if self.rank == self.root:
            source = self.result().plus(self.own[0])  # an empty block
        here = self.home and self.rank != self.root
        self.across_lane(k, self.lane_root, source, self.slot_of(k) if here else self.result(), dense=here)

    def behind(self, k: int, first: int, count: int) -> None:
        if not self.home or self.width == 1:
            return
        at = self.slot_of(k)
        for part in self.others(k):
            mine, end = self.slice_of(part)
            source = self.result().plus(mine) if self.rank == self.root else at
            target = self.result().plus(part[0])
            after = self.landed.get(k, -1)
            self.emptied[k] = self.on_node("gather", self.root, source, target, part[1] - part[0], after)
            at = at.plus(end - mine)

    def end(self) -> None:
        if self.rank == self.root:
            self.by_ranks()


class _Scatter(Blocks):
    """The root passes slices to the members of its node, the lanes pass them on, the nodes pass them to the owners."""

    rooted = True

    def begin(self) -> None:
        self.source, there = self.by_nodes() if self.rank == self.root else (Place(INPUT, 0), -1)
        self.emptied: dict[int, int] = {}  # the part that empties a slot, by segment
        self.ready = there
        if self.home:
            first, end = self.own
            source, cuts = self.source.plus(first), _within(self.bounds, self.own)
            self.ready = self.on_node("scatter", self.root, source, Place(VECTOR, 0), end - first, there, cuts)
            if self.alone:
                self.ready = self.copied(source, Place(VECTOR, 0), [end - first], [0], there)

    def before(self, k: int, first: int, count: int) -> None:
        if not self.home:
            self.ready = self.emptied.get(k - DEPTH, -1)
        elif self.width > 1:
            at, after = self.slot_of(k), self.landed.get(k - DEPTH, -1)
            for part in self.others(k):
                mine, end = self.slice_of(part)
                target = self.source.plus(mine) if self.rank == self.root else at
                source = self.source.plus(part[0])
                self.ready = self.on_node("scatter", self.root, source, target, part[1] - part[0], after)
                at = at.plus(end - mine)

    def across(self, k: int, first: int, count: int) -> None:
        here = self.home and self.rank != self.root
        source, target = self.slot_of(k) if here else self.source, self.slot_of(k)
        if self.rank == self.root:
            target = self.source.plus(self.own[0])  # nothing is to be copied
        elif self.alone or self.direct:
            target = Place(VECTOR, self.part_of_own(k)[0] - self.own[0] if self.alone else 0)
        self.across_lane(k, self.lane_root, source, target, dense=here)

    def behind(self, k: int, first: int, count: int) -> None:
        if not self.home and not self.direct:
            self.emptied[k] = self.to_owners(k, self.slot_of(k), self.landed.get(k, -1))


CALLS: dict[str, type[Call]] = {
    "allgather": _Allgather, "reduce_scatter": _ReduceScatter, "gather": _Gather, "scatter": _Scatter,
}  # fmt: skip
