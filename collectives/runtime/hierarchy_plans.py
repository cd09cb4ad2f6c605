"""Plans of the algorithm ``hierarchical``: each part becomes a plan of the node-local engine or of the executor."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ..arguments.shape import Shape
from ..core import _core
from ..schedules.build import assemble
from ..schedules.registry import ScheduleAlgorithm, find
from ..schedules.schedule import INPUT, VECTOR, Round, Step, copy, mapped
from ..system import heap
from .hierarchy import parts_of
from .hierarchy_parts import Part, Place, segments
from .nodes import Nodes

__all__ = ["algorithm_of_lane", "hierarchy_plan", "program_of_lane"]

_SUM, _AVG = (_core.OPS.index(name) for name in ("sum", "avg"))
_NOWHERE = Place(0, 0)
_Task = _core.Plan | _core.NodePlan | _core.Transpose
PART_BYTES = 512  # about the memory of a part in a plan
#: The algorithms of lanes: for slices of up to so many bytes, and for longer ones.
LANES = {
    "allreduce": (16 << 10, "recursive_doubling", "circulant"),
    "bcast": (64 << 10, "binomial", "scatter_allgather"),
    "reduce": (64 << 10, "binomial", "scatter_gather"),
    "barrier": (0, "dissemination", "dissemination"),
    "alltoall": (64 << 10, "linear", "pairwise"),
}
#: The algorithms of lanes whose ranks have a block each: for blocks one after the other, and for spaced ones, which
#: take an algorithm that handles one block at a time.
BLOCKS = {
    "allgather": ("circulant", "ring"),
    "reduce_scatter": ("circulant", "ring"),
    "gather": ("binomial", "linear"),
    "scatter": ("binomial", "linear"),
}


def algorithm_of_lane(
    collective: str, slice_bytes: int, pieces: int, nodes: int, spaced: bool = False
) -> ScheduleAlgorithm:
    """The algorithm of a lane's part, for a call of so many ``pieces`` (segments) on so many ``nodes``.

    A broadcast of at least as many segments as nodes goes along a chain, which sends every byte once over each link.
    """
    if collective in BLOCKS:
        name = BLOCKS[collective][spaced]
    else:
        limit, short, long = LANES[collective]
        name = short if slice_bytes <= limit else long
    if collective == "bcast" and pieces >= nodes:
        name = "chain"
    algorithm = find(collective, name)
    assert isinstance(algorithm, ScheduleAlgorithm)
    return algorithm


@functools.lru_cache(maxsize=256)
def program_of_lane(
    algorithm: ScheduleAlgorithm, lane: tuple[int, ...], rank: int, size: int, in_place: bool, root: int,
    spaced: bool = False,
) -> _core.Program:  # fmt: skip
    """The program of ``rank``, one of the ``lane``, whose ranks run ``algorithm`` among themselves.

    ``spaced``: there is one more block before each block of a rank, and one behind the last.
    """
    own, there = lane.index(rank), lane.index(root) if algorithm.spec.rooted else 0
    words = {"root": there} if algorithm.spec.rooted else {}
    rounds: Iterable[Round] = algorithm.generator.on(lane)(rank, size, **words)
    blocks = algorithm.blocks(len(lane))
    if spaced:
        own, there, blocks = 2 * own + 1, 2 * there + 1, 2 * blocks + 1
        rounds = [mapped(steps, _spaced) for steps in rounds]
    s = assemble(algorithm.name, own, size, blocks, rounds, algorithm.collective, there)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block)


def _spaced(step: Step) -> Step:
    """The step on block 2i + 1 for block i."""
    return replace(step, block=2 * np.asarray(step.block) + 1)


@functools.lru_cache(maxsize=256)
def program_of_copy(order: tuple[int, ...], size: int) -> _core.Program:
    """The program that copies block ``order[i]`` of the input to block i of the vector; both have as many blocks."""
    steps = [copy(INPUT, VECTOR, i, 1, src_block=source) for i, source in enumerate(order)]
    s = assemble("copy", 0, size, len(order), [steps], "alltoall")
    return _core.Program(s.steps, size, s.nblocks, s.scratch, False, s.input_block, s.vector_block)


class _Private:
    """Scratch memory of a rank without a heap, which is alone on its node."""

    def __init__(self, nbytes: int):
        self._memory = np.empty(nbytes, np.uint8)
        self.address = _core.address(self._memory)


class _Maker:
    """Makes the tasks of a plan; parts that are alike share one."""

    def __init__(self, nodes: Nodes, shape: Shape, engine: _core.Node | None, endpoint: _core.Endpoint):
        self.nodes, self.shape, self.engine, self.endpoint = nodes, shape, engine, endpoint
        self.pieces = len(segments(shape.elements, shape.itemsize, nodes.width))
        self.made: dict[Any, _Task] = {}

    def task(self, part: Part) -> _Task:
        """The task of a part, without its addresses."""
        in_place = self._in_place(part)
        key = *part._replace(source=_NOWHERE, target=_NOWHERE, after=-1), in_place
        if key not in self.made:
            self.made[key] = self._made(part, in_place)
        return self.made[key]

    def _made(self, part: Part, in_place: bool) -> _Task:
        if part.matrix is not None:
            rows, columns, elements = part.matrix
            return _core.Transpose(rows, columns, elements * self.shape.itemsize)
        return self._of_lane(part, in_place) if part.lane else self._of_node(part)

    def _in_place(self, part: Part) -> bool:
        """Whether the schedule of a lane has the same memory as input and vector, block by block."""
        source, target = part.source, part.target
        if part.collective in BLOCKS and part.cuts is not None and part.lane:
            own = part.lane.index(self.endpoint.rank)
            first = part.cuts[2 * own + 1 if part.spaced else own]
            if part.collective in ("allgather", "gather"):
                target = target.plus(first)
            else:
                source = source.plus(first)
        return self._address(source) == self._address(target)

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
                collective=part.collective,
                root=root,
                elements=part.elements,
                op=op,
                cuts=part.cuts,
                input_cuts=part.input_cuts,
            ),  # fmt: skip
        )

    def _of_lane(self, part: Part, in_place: bool) -> _core.Plan:
        shape, end = self.shape, self.endpoint
        if part.order:
            program = program_of_copy(part.order, end.size)
            return _core.Plan(
                program, end, part.elements, shape.itemsize, -1, None, cuts=part.cuts, input_cuts=part.input_cuts
            )
        # In an all-to-all the ranks of a lane may receive different numbers of elements; all must choose alike.
        slice_bytes = shape.nbytes if part.collective == "alltoall" else part.elements * shape.itemsize
        algorithm = algorithm_of_lane(part.collective, slice_bytes, self.pieces, len(part.lane), part.spaced)
        program = program_of_lane(algorithm, part.lane, end.rank, end.size, in_place, part.root, part.spaced)
        return _core.Plan(
            program, end, part.elements, shape.itemsize, shape.dtype, shape.op, cuts=part.cuts,
            input_cuts=part.input_cuts,
        )  # fmt: skip


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
    if elements:
        scratch = _Private(elements * item) if memory is None else _core.HeapBlock(memory, elements * item)
    footprint = elements * item + PART_BYTES * len(made) + sum(task.footprint for task in maker.made.values())
    return _core.HierarchyPlan(engine, list(node), endpoint.size, made, scratch, footprint)
