"""The algorithm ``hierarchical``: what a rank does in a call of ranks on several nodes, as a sequence of parts.

A vector is cut into segments. Each segment of an all-reduce has three parts. The node reduces it, so that each of its
members has a slice; every lane reduces its slice between the nodes; the node gathers the slices. So each lane moves a
part of the data, all lanes together use the links of a node, and no byte leaves a node twice (full lane: Traeff 2019,
arXiv 1910.13373). With one member, a leader, the node reduces to it and broadcasts from it. While a segment is between
the nodes, the nodes work on those before and after it:

    node     reduce 0   reduce 1   reduce 2   gather 0   reduce 3   gather 1  ...
    lane                all-reduce 0, all-reduce 1, ...  up to DEPTH at once

A broadcast has the root's node pass a segment to its members first, a reduction gathers it on the root's node last.
Nodes fold in rank order, lanes as their schedules do, so the op must commute.
"""

from __future__ import annotations

from typing import NamedTuple

from ..arguments.shape import Shape
from ..core import _core
from .nodes import Nodes

__all__ = ["DEPTH", "INPUT", "SCRATCH", "VECTOR", "Part", "Place", "parts_of", "segments"]

DEPTH = 4  # segments of one call in flight, and so tags of one call; as COLL_HIERARCHY_RUNS
INPUT, VECTOR, SCRATCH = range(len(_core.PLACES))
LEADER = 8 << 10  # bytes up to which one member of a node sends, so that there are fewer messages
SEGMENT = 1 << 20  # bytes of a segment,
MOST = 256  # unless there would be more than this number of them


class Place(NamedTuple):
    """A place of a part's data: INPUT, VECTOR or SCRATCH, and the first element there."""

    buffer: int
    first: int


class Part(NamedTuple):
    """One part of a call: a collective of the ranks of the node, or, if there is a ``lane``, of these ranks.

    ``root`` is a rank of the communicator. ``elements`` are those of all blocks; ``cuts`` are their boundaries on a
    node. ``run`` tells parts of the lane that may run at once from each other. ``after`` is the index of the part that
    must have ended before, or -1.
    """

    collective: str
    lane: tuple[int, ...]
    root: int
    source: Place
    target: Place
    elements: int
    cuts: tuple[int, ...] | None = None
    run: int = 0
    after: int = -1


def segments(shape: Shape) -> list[tuple[int, int]]:
    """First element and number of elements of each segment; all but the last are equally long."""
    number = min(MOST, -(-shape.nbytes // SEGMENT)) or 1
    each = max(1, -(-shape.elements // number))
    return [(first, min(each, shape.elements - first)) for first in range(0, shape.elements, each)] or [(0, 0)]


class _Call:
    """The parts of one rank's call, as they are put together; ``ready`` is the part that the next of the lane follows.

    The parts of segment k are those that come ``before`` the lane's, the lane's own (``across``), and those ``behind``.
    """

    def __init__(self, nodes: Nodes, rank: int, shape: Shape):
        self.rank, self.shape, self.root = rank, shape, shape.root
        self.width = 1 if shape.nbytes <= LEADER else nodes.width
        self.node = nodes.node_of(rank)
        self.alone, self.home = len(self.node) == 1, self.root in self.node
        self.members = nodes.members(self.node, self.width, self.root)
        self.lane: tuple[int, ...] = ()
        self.lane_root = -1  # the rank of the lane on the root's node
        if rank in self.members:
            self.lane = nodes.lane(self.members.index(rank), self.width, self.root)
            self.lane_root = next(r for r in self.lane if r in nodes.node_of(self.root))
        self.slot = -(-segments(shape)[0][1] // self.width)  # elements of the longest slice
        self.parts: list[Part] = []
        self.ready = -1
        self.landed: dict[int, int] = {}  # the lane's part by segment

    def before(self, k: int, first: int, count: int) -> None:
        """Add the node's parts of segment k that the lane's part follows."""
        raise NotImplementedError

    def across(self, k: int, first: int, count: int) -> None:
        """Add the lane's part of segment k."""
        raise NotImplementedError

    def behind(self, k: int, first: int, count: int) -> None:
        """Add the node's parts of segment k that follow the lane's."""
        raise NotImplementedError

    def in_order(self) -> list[Part]:
        """All parts; those behind a lane's come DEPTH - 1 segments later than those before it."""
        cut = segments(self.shape)
        for k in range(len(cut) + DEPTH - 1):
            if k < len(cut):
                self.before(k, *cut[k])
                self.across(k, *cut[k])
            if k >= DEPTH - 1:
                self.behind(k - DEPTH + 1, *cut[k - DEPTH + 1])
        return self.parts

    def cuts(self, count: int) -> tuple[int, ...]:
        """The boundaries of the node's slices of a segment; ranks that are no members have empty ones."""
        bounds = _core.partition(count, self.width)
        return (0, *(bounds[sum(member <= rank for member in self.members)] for rank in self.node))

    def slice(self, first: int, count: int) -> tuple[int, int]:
        """First element and number of elements of this rank's slice of a segment."""
        cuts, i = self.cuts(count), self.node.index(self.rank)
        return first + cuts[i], cuts[i + 1] - cuts[i]

    def on_node(self, name: str, root: int, source: Place, target: Place, count: int, after: int = -1) -> int:
        """Add a part of the node, unless the rank is alone there; returns its index, or -1."""
        if self.alone:
            return -1
        cuts = self.cuts(count) if name in ("reduce_scatter", "allgather", "gather") else None
        self.parts.append(Part(name, (), root, source, target, count, cuts, 0, after))
        return len(self.parts) - 1

    def on_lane(self, k: int, name: str, root: int, source: Place, target: Place, count: int) -> None:
        """Add the lane's part of segment k, if this rank is a member with a slice."""
        if self.lane and count:
            self.landed[k] = len(self.parts)
            self.parts.append(Part(name, self.lane, root, source, target, count, None, k % DEPTH, self.ready))

    def reduce_on_node(self, first: int, count: int, own: Place, after: int = -1) -> None:
        """Have each member get its slice of the node's reduction at ``own``; the lane's part follows."""
        source = Place(INPUT, first)
        if self.width == 1:
            self.ready = self.on_node("reduce", self.members[0], source, own, count, after)
        else:
            self.ready = self.on_node("reduce_scatter", self.root, source, own, count, after)

    def spread_on_node(self, k: int, first: int, count: int) -> None:
        """Have all ranks of the node get the members' slices, behind the lane's part of segment k."""
        whole, after = Place(VECTOR, first), self.landed.get(k, -1)
        if self.width == 1:
            self.on_node("bcast", self.members[0], whole, whole, count, after)
        else:
            own = Place(VECTOR, self.slice(first, count)[0])
            self.on_node("allgather", self.root, own, whole, count, after)


class _Allreduce(_Call):
    def before(self, k: int, first: int, count: int) -> None:
        self.reduce_on_node(first, count, Place(VECTOR, self.slice(first, count)[0]))

    def across(self, k: int, first: int, count: int) -> None:
        at, mine = self.slice(first, count)
        source = Place(INPUT if self.alone else VECTOR, at)
        self.on_lane(k, "allreduce", self.root, source, Place(VECTOR, at), mine)

    def behind(self, k: int, first: int, count: int) -> None:
        self.spread_on_node(k, first, count)


class _Bcast(_Call):
    def before(self, k: int, first: int, count: int) -> None:
        if self.home and self.width > 1:
            whole = Place(VECTOR, first)
            passed = self.on_node("bcast", self.root, whole, whole, count)
            self.ready = -1 if self.rank == self.root else passed

    def across(self, k: int, first: int, count: int) -> None:
        at, mine = self.slice(first, count)
        self.on_lane(k, "bcast", self.lane_root, Place(VECTOR, at), Place(VECTOR, at), mine)

    def behind(self, k: int, first: int, count: int) -> None:
        if not self.home or self.width == 1:
            self.spread_on_node(k, first, count)


class _Reduce(_Call):
    def own(self, k: int, first: int, count: int) -> Place:
        """Where this rank's slice of the node's reduction is: in the result on the root, else in a slot."""
        if self.rank == self.root:
            return Place(VECTOR, self.slice(first, count)[0])
        return Place(SCRATCH, k % DEPTH * self.slot)

    def before(self, k: int, first: int, count: int) -> None:
        # The slot is free when it has been sent; on the root's node, when the gather behind it has ended.
        free = -1 if self.home else self.landed.get(k - DEPTH, -1)
        self.reduce_on_node(first, count, self.own(k, first, count), free)

    def across(self, k: int, first: int, count: int) -> None:
        at, mine = self.slice(first, count)
        own = self.own(k, first, count)
        source, target = (Place(INPUT, at), Place(VECTOR, at)) if self.alone else (own, own)
        self.on_lane(k, "reduce", self.lane_root, source, target, mine)

    def behind(self, k: int, first: int, count: int) -> None:
        if self.home and self.width > 1:
            own, after = self.own(k, first, count), self.landed.get(k, -1)
            self.on_node("gather", self.root, own, Place(VECTOR, first), count, after)


class _Barrier(_Call):
    def before(self, k: int, first: int, count: int) -> None:
        self.ready = self.on_node("barrier", self.root, _TOKEN, _TOKEN, count)

    def across(self, k: int, first: int, count: int) -> None:
        self.on_lane(k, "barrier", self.root, _TOKEN, _TOKEN, count)

    def behind(self, k: int, first: int, count: int) -> None:
        self.on_node("barrier", self.root, _TOKEN, _TOKEN, count, self.landed.get(k, -1))


_TOKEN = Place(VECTOR, 0)  # the one byte of a barrier, which only lanes send
_CALLS = {"allreduce": _Allreduce, "bcast": _Bcast, "reduce": _Reduce, "barrier": _Barrier}


def parts_of(nodes: Nodes, rank: int, shape: Shape) -> tuple[list[Part], int]:
    """The parts of a call of ``rank``, and the elements of scratch memory that they need."""
    call = _CALLS[shape.collective](nodes, rank, shape)
    parts = call.in_order()
    return parts, DEPTH * call.slot * any(SCRATCH in (part.source.buffer, part.target.buffer) for part in parts)
