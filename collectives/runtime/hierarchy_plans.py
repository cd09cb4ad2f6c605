"""Plans of the algorithm ``hierarchical``: each part becomes a plan of the node-local engine or of the executor."""

from __future__ import annotations

import functools
from typing import Any

from ..arguments.shape import Shape
from ..core import _core
from ..schedules.build import assemble
from ..schedules.registry import ScheduleAlgorithm, find
from ..system import heap
from .hierarchy import Part, Place, parts_of, segments
from .nodes import Nodes

__all__ = ["algorithm_of_lane", "hierarchy_plan", "program_of_lane"]

_SUM, _AVG = (_core.OPS.index(name) for name in ("sum", "avg"))
PART_BYTES = 512  # about the memory of a part in a plan
#: The algorithms of lanes: for slices of up to so many bytes, and for longer ones.
LANES = {
    "allreduce": (16 << 10, "recursive_doubling", "circulant"),
    "bcast": (64 << 10, "binomial", "scatter_allgather"),
    "reduce": (64 << 10, "binomial", "scatter_gather"),
    "barrier": (0, "dissemination", "dissemination"),
}


def algorithm_of_lane(collective: str, slice_bytes: int, pieces: int, nodes: int) -> ScheduleAlgorithm:
    """The algorithm of a lane's part, for a call of so many ``pieces`` (segments) on so many ``nodes``.

    A broadcast of at least as many segments as nodes goes along a chain, which sends every byte once over each link.
    """
    limit, short, long = LANES[collective]
    name = short if slice_bytes <= limit else long
    if collective == "bcast" and pieces >= nodes:
        name = "chain"
    algorithm = find(collective, name)
    assert isinstance(algorithm, ScheduleAlgorithm)
    return algorithm


@functools.lru_cache(maxsize=256)
def program_of_lane(
    algorithm: ScheduleAlgorithm, lane: tuple[int, ...], rank: int, size: int, in_place: bool, root: int
) -> _core.Program:
    """The program of ``rank``, one of the ``lane``, whose ranks run ``algorithm`` among themselves."""
    words = {"root": lane.index(root)} if algorithm.spec.rooted else {}
    rounds = algorithm.generator.on(lane)(rank, size, **words)
    s = assemble(algorithm.name, rank, size, algorithm.blocks(len(lane)), rounds, algorithm.collective, root)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block)


class _Maker:
    """Makes the tasks of a plan; parts that are alike share one."""

    def __init__(self, nodes: Nodes, shape: Shape, engine: _core.Node | None, endpoint: _core.Endpoint):
        self.nodes, self.shape, self.engine, self.endpoint = nodes, shape, engine, endpoint
        self.pieces = len(segments(shape))
        self.made: dict[Any, _core.Plan | _core.NodePlan] = {}

    def task(self, part: Part) -> _core.Plan | _core.NodePlan:
        """The task of a part, without its addresses."""
        in_place = self._address(part.source) == self._address(part.target)
        key = part.collective, bool(part.lane), part.root, part.elements, part.cuts, part.run, in_place
        if key not in self.made:
            self.made[key] = self._of_lane(part, in_place) if part.lane else self._of_node(part)
        return self.made[key]

    def _address(self, place: Place) -> tuple[int, int]:
        """The place, with the vector for the input in a call in place."""
        return (1 if place.buffer == 0 and self.shape.in_place else place.buffer), place.first

    def _of_node(self, part: Part) -> _core.NodePlan:
        assert self.engine is not None
        node = self.nodes.node_of(self.endpoint.rank)
        root = node.index(part.root) if part.root in node else 0  # which is not used then
        op = _SUM if self.shape.op == _AVG else self.shape.op  # the lanes divide, by the number of all ranks
        return _core.NodePlan(
            self.engine,
            self.shape._replace(
                collective=part.collective, root=root, elements=part.elements, op=op, cuts=part.cuts, input_cuts=None
            ),
        )

    def _of_lane(self, part: Part, in_place: bool) -> _core.Plan:
        shape, end = self.shape, self.endpoint
        slice_bytes = part.elements * shape.itemsize
        algorithm = algorithm_of_lane(part.collective, slice_bytes, self.pieces, len(part.lane))
        program = program_of_lane(algorithm, part.lane, end.rank, end.size, in_place, part.root)
        return _core.Plan(program, end, part.elements, shape.itemsize, shape.dtype, shape.op)


def hierarchy_plan(
    nodes: Nodes, shape: Shape, engine: _core.Node | None, endpoint: _core.Endpoint
) -> _core.HierarchyPlan:
    """A plan of ``shape``, whose parts on the node run in the group ``engine``; MemoryError without shared memory."""
    rank, item = endpoint.rank, shape.itemsize
    node = nodes.node_of(rank)
    parts, elements = parts_of(nodes, rank, shape)
    maker = _Maker(nodes, shape, engine, endpoint)
    made: list[Any] = [
        (
            maker.task(part), part.run, part.after, (part.source.buffer, part.source.first * item),
            (part.target.buffer, part.target.first * item),
        )
        for part in parts
    ]  # fmt: skip
    memory, scratch = heap.process_heap(), None
    if elements and memory is not None:
        scratch = _core.HeapBlock(memory, elements * item)
    footprint = elements * item + PART_BYTES * len(made) + sum(task.footprint for task in maker.made.values())
    return _core.HierarchyPlan(engine, list(node), endpoint.size, made, scratch, footprint)
