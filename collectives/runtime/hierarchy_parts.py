"""The parts of a rank's hierarchical call, and what all such calls have in common (see :mod:`.hierarchy`)."""

from __future__ import annotations

import bisect
from typing import NamedTuple

from ..arguments.shape import Shape
from ..core import _core
from .nodes import Nodes

__all__ = ["DEPTH", "INPUT", "MOST", "SCRATCH", "VECTOR", "Call", "Part", "Place", "segments"]

DEPTH = 4  # segments of one call in flight, and so tags of one call; as COLL_HIERARCHY_RUNS
INPUT, VECTOR, SCRATCH = range(len(_core.PLACES))
#: Bytes up to which one member of a node, its leader, sends, so that there are fewer messages: by collective, and for
#: collectives that are not named. Measured on 4 hosts of 2 and of 4 ranks, which share two cores, at 200 and 1000
#: Mbit/s. Up to there, a leader took 0.60 to 1.21 of the time of all members (1.00 to 1.21 in an all-reduce of 64 KiB;
#: 0.72 to 0.99 in one of 128 KiB). Of longer all-reduces each further member has as many bytes: on 4 hosts of 4 ranks,
#: two members took 0.85 to 0.90 of the time of four with 256 KiB at 1000 Mbit/s, and 1.00 to 1.04 at 200 Mbit/s.
LEADER = {"allreduce": 128 << 10, "bcast": 32 << 10}
LEADER_OF_OTHERS = 16 << 10
SEGMENT, SLICE = 1 << 20, 128 << 10  # most bytes of a segment, and of a lane's slice of it,
MOST = 256  # unless there would be more than this number of segments, of which a lane's slice has at most
LONGEST = 32 << 20  # bytes: DEPTH runs stage two slices each, which is policy.STAGING_LIMIT in all


class Place(NamedTuple):
    """A place of a part's data: INPUT, VECTOR or SCRATCH, and the first element there."""

    buffer: int
    first: int

    def plus(self, elements: int) -> Place:
        """The place so many elements further on."""
        return Place(self.buffer, self.first + elements)


class Part(NamedTuple):
    """One part of a call: a collective of the ranks of the node, or, if there is a ``lane``, of these ranks.

    ``root`` is a rank of the communicator. ``elements`` are those of all blocks; ``cuts`` are their boundaries, and
    ``input_cuts`` those of the input if they differ. ``run`` is, for a part of the lane, a number from 0 to DEPTH - 1,
    which sets the tag: parts with different numbers may be under way at once. For a part of the node it is the channel,
    1 for some parts behind those of the lane, else 0. ``after`` is the index of the part that must have ended before,
    or -1. ``spaced``: only every second block, from block 1 on, belongs to a rank of the lane. Two collectives have the
    lane of their rank alone: of a ``"copy"``, block i of the target is block ``order[i]`` of the source; a
    ``"transpose"`` exchanges rows and columns of a matrix, ``(rows, columns, elements of an entry)``.
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
    input_cuts: tuple[int, ...] | None = None
    spaced: bool = False
    order: tuple[int, ...] = ()
    matrix: tuple[int, int, int] | None = None


def _width(collective: str, nbytes: int, most: int) -> int:
    """The number of lanes of a call, up to ``most``."""
    limit = LEADER.get(collective, LEADER_OF_OTHERS)
    if nbytes <= limit:
        return 1
    return min(most, -(-nbytes // limit)) if collective == "allreduce" else most


def segments(elements: int, itemsize: int, lanes: int, most: int = MOST) -> list[tuple[int, int]]:
    """First element and number of elements of each segment; all but the last are equally long.

    There are ``most`` at most, unless a lane's slice of one were longer than LONGEST.
    The fewer ``lanes`` share a segment, the shorter it is: no link carries anything while the first segment is reduced
    on the nodes, nor while the last one is gathered.
    """
    nbytes = elements * itemsize
    number = max(1, min(most, -(-nbytes // min(SEGMENT, lanes * SLICE))), -(-nbytes // (lanes * LONGEST)))
    each = max(1, -(-elements // number))
    return [(first, min(each, elements - first)) for first in range(0, elements, each)] or [(0, 0)]


class Call:
    """The parts of one rank's call, as they are put together.

    ``ready`` is the index of the part that must end before the lane's next part begins, or -1.
    The parts of segment k are those that come ``before`` the lane's, the lane's own (``across``), and those ``behind``.
    ``begin`` adds those before all segments, and ``end`` those behind.
    """

    def __init__(self, nodes: Nodes, rank: int, shape: Shape, length: int | None = None, most: int = MOST):
        """``length`` is that of what is cut into segments, at most ``most``, if it is not the vector."""
        self.nodes, self.rank, self.shape, self.root = nodes, rank, shape, shape.root
        self.length = shape.elements if length is None else length
        self.width = _width(shape.collective, self.length * shape.itemsize, nodes.width)
        self.segments = segments(self.length, shape.itemsize, self.width, most)
        self.node = nodes.node_of(rank)
        self.alone, self.home = len(self.node) == 1, self.root in self.node
        self.members = nodes.members(self.node, self.width, self.root)
        self.up_to = [bisect.bisect_right(self.members, r) for r in self.node]  # members up to each rank of the node
        self.lane: tuple[int, ...] = ()
        self.lane_root = -1  # the rank of the lane on the root's node
        if rank in self.members:
            self.lane = nodes.lane(self.members.index(rank), self.width, self.root)
            self.lane_root = self.lane[nodes.ranks.index(nodes.node_of(self.root))]
        self.slot = -(-self.segments[0][1] // self.width)  # elements of the longest slice
        self.parts: list[Part] = []
        self.ready = -1
        self.landed: dict[int, int] = {}  # the lane's part by segment

    @property
    def scratch(self) -> int:
        """Elements of scratch memory that the parts use."""
        used = any(SCRATCH in (part.source.buffer, part.target.buffer) for part in self.parts)
        return self._room() if used else 0

    def _room(self) -> int:
        return DEPTH * self.slot

    def begin(self) -> None:
        """Add the parts that come before all segments."""

    def before(self, k: int, first: int, count: int) -> None:
        """Add the node's parts of segment k that the lane's part follows."""

    def across(self, k: int, first: int, count: int) -> None:
        """Add the lane's part of segment k."""
        raise NotImplementedError

    def behind(self, k: int, first: int, count: int) -> None:
        """Add the node's parts of segment k that follow the lane's."""

    def end(self) -> None:
        """Add the parts that come behind all segments."""

    def in_order(self) -> list[Part]:
        """All parts; those behind a lane's come DEPTH - 1 segments later than those before it."""
        cut = self.segments
        self.begin()
        for k in range(len(cut) + DEPTH - 1):
            if k < len(cut):
                self.before(k, *cut[k])
                self.across(k, *cut[k])
            if k >= DEPTH - 1:
                self.behind(k - DEPTH + 1, *cut[k - DEPTH + 1])
        self.end()
        return self.parts

    def cuts(self, count: int) -> tuple[int, ...]:
        """The boundaries of the node's slices of a segment; ranks that are no members have empty ones."""
        bounds = _core.partition(count, self.width)
        return (0, *(bounds[number] for number in self.up_to))

    def slice(self, first: int, count: int) -> tuple[int, int]:
        """First element and number of elements of this rank's slice of a segment."""
        cuts, i = self.cuts(count), self.node.index(self.rank)
        return first + cuts[i], cuts[i + 1] - cuts[i]

    def add(self, part: Part) -> int:
        """Add a part; returns its index."""
        self.parts.append(part)
        return len(self.parts) - 1

    def on_node(
        self, name: str, root: int, source: Place, target: Place, count: int, after: int = -1,
        cuts: tuple[int, ...] | None = None, input_cuts: tuple[int, ...] | None = None, channel: int = 0,
    ) -> int:  # fmt: skip
        """Add a part of the node to a channel, unless the rank is alone there; returns its index, or -1."""
        if self.alone:
            return -1
        if cuts is None and name in ("reduce_scatter", "allgather", "gather", "scatter"):
            cuts = self.cuts(count)
        return self.add(Part(name, (), root, source, target, count, cuts, channel, after, input_cuts))

    def on_lane(
        self, k: int, name: str, root: int, source: Place, target: Place, count: int,
        cuts: tuple[int, ...] | None = None, spaced: bool = False,
    ) -> None:  # fmt: skip
        """Add the lane's part of segment k, if this rank is a member with a slice."""
        if self.lane and count:
            run, after = k % DEPTH, self.ready
            self.landed[k] = self.add(
                Part(name, self.lane, root, source, target, count, cuts, run, after, spaced=spaced)
            )

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
            self.on_node("bcast", self.members[0], whole, whole, count, after, channel=1)
        else:
            own = Place(VECTOR, self.slice(first, count)[0])
            self.on_node("allgather", self.root, own, whole, count, after, channel=1)
