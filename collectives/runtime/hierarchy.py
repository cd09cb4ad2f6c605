"""The algorithm ``hierarchical``: what a rank does in a call of ranks on several nodes, as a sequence of parts.

A vector is cut into segments. Each segment of an all-reduce has three parts. The node reduces it, so that each of its
members has a slice; every lane reduces its slice between the nodes; the node gathers the slices. So each lane moves a
part of the data, and all lanes together use the links of a node (full lane: Traeff 2019, arXiv 1910.13373). With one
member, a leader, the node reduces to it and broadcasts from it. While a segment is between the nodes, the nodes work on
those before and after it:

    node, channel 0   reduce 0   reduce 1   reduce 2   reduce 3   reduce 4  ...
    lane                         all-reduce 0, all-reduce 1, ...  up to DEPTH at once
    node, channel 1                                    gather 0   gather 1  ...

A broadcast has the root's node pass a segment to its members first, a reduction gathers it on the root's node last.
Nodes fold in rank order, lanes as their schedules do, so the op must commute.
"""

from __future__ import annotations

from ..arguments.shape import Shape
from . import hierarchy_alltoall, hierarchy_blocks
from .hierarchy_parts import DEPTH, INPUT, SCRATCH, VECTOR, Call, Part, Place
from .nodes import Nodes

__all__ = ["DEPTH", "parts_of"]


class _Allreduce(Call):
    def before(self, k: int, first: int, count: int) -> None:
        self.reduce_on_node(first, count, Place(VECTOR, self.slice(first, count)[0]))

    def across(self, k: int, first: int, count: int) -> None:
        at, mine = self.slice(first, count)
        source = Place(INPUT if self.alone else VECTOR, at)
        self.on_lane(k, "allreduce", self.root, source, Place(VECTOR, at), mine)

    def behind(self, k: int, first: int, count: int) -> None:
        self.spread_on_node(k, first, count)


class _Bcast(Call):
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


class _Reduce(Call):
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


class _Barrier(Call):
    def before(self, k: int, first: int, count: int) -> None:
        self.ready = self.on_node("barrier", self.root, _TOKEN, _TOKEN, count)

    def across(self, k: int, first: int, count: int) -> None:
        self.on_lane(k, "barrier", self.root, _TOKEN, _TOKEN, count)

    def behind(self, k: int, first: int, count: int) -> None:
        self.on_node("barrier", self.root, _TOKEN, _TOKEN, count, self.landed.get(k, -1), channel=1)


_TOKEN = Place(VECTOR, 0)  # the one byte of a barrier, which only lanes send
_CALLS: dict[str, type[Call]] = {
    "allreduce": _Allreduce, "bcast": _Bcast, "reduce": _Reduce, "barrier": _Barrier,
    **hierarchy_blocks.CALLS, **hierarchy_alltoall.CALLS,
}  # fmt: skip


def parts_of(nodes: Nodes, rank: int, shape: Shape) -> tuple[list[Part], int]:
    """The parts of a call of ``rank``, and the elements of scratch memory that they need."""
    call = _CALLS[shape.collective](nodes, rank, shape)
    return call.in_order(), call.scratch
