"""The parts of hierarchical calls, run in one process, in random orders: every layout, without MPI."""

import itertools
import random

import numpy as np
import pytest

from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.runtime import hierarchy_parts
from collectives.runtime.hierarchy import parts_of
from collectives.runtime.hierarchy_parts import segments
from collectives.runtime.hierarchy_plans import hierarchy_plan
from collectives.runtime.nodes import Nodes
from collectives.selection.policy import STAGING_LIMIT

LAYOUTS = ["aab", "abba", "aaabb", "abaca"]
MORE = ["abab", "aabb", "abcabc", "aabbcc", "aaaabbbc", "abbcccabc", "aabcdef"]
ROOTED = ("gather", "scatter")
SUM = _core.OPS.index("sum")


class Rank:
    """One rank's memory and parts; memory that the rank does not have is None."""

    def __init__(self, nodes, rank, shape, given, result):
        self.rank, self.node = rank, nodes.node_of(rank)
        self.parts, scratch = parts_of(nodes, rank, shape)
        self.memory = [given, result, np.full(scratch, -1)]
        self.done = [False] * len(self.parts)

    def at(self, place, count):
        """The elements at a place; there must be so many."""
        memory = self.memory[place.buffer]
        if memory is None or not count:
            return np.zeros(0, int)
        found = memory[place.first : place.first + count]
        assert len(found) == count, (place, count, len(memory))
        return found

    def next_ones(self):
        """The parts that may begin: the first of the node, and the first of each run, if what they follow has ended."""
        seen = set()
        for i, part in enumerate(self.parts):
            line = part.run if part.lane else "node"
            if self.done[i] or line in seen:
                continue
            seen.add(line)
            assert part.after < i
            if part.after < 0 or self.done[part.after]:
                yield i


def run(ranks, chance):
    """Run parts, in random order, until none is left; those that take part in one must agree on it."""
    while not all(all(one.done) for one in ranks.values()):
        ready = {r: list(one.next_ones()) for r, one in ranks.items()}
        groups = []
        for r, found in ready.items():
            for i in found:
                part = ranks[r].parts[i]
                among = part.lane or ranks[r].node
                if among[0] != r:
                    continue
                numbers = [next((k for k in ready[m] if alike(ranks[m].parts[k], part)), None) for m in among]
                if None not in numbers:
                    groups.append(list(zip(among, numbers, strict=True)))
        assert groups, "no part can run"
        group = chance.choice(groups)
        run_part([(ranks[r], ranks[r].parts[i]) for r, i in group])
        for r, i in group:
            ranks[r].done[i] = True


def alike(one, other):
    """Whether two parts are the same collective of the same ranks."""
    return one[:3] == other[:3] and (one.run, one.spaced) == (other.run, other.spaced)


def run_part(every):
    """Run one part: what the engine, or a schedule, does."""
    part = every[0][1]
    size, name = len(every), part.collective
    among = part.lane or every[0][0].node
    root = among.index(part.root) if part.root in among else 0
    of = (lambda i: 2 * i + 1) if part.spaced else (lambda i: i)
    outs, ins = [], []
    for _, p in every:
        cuts = p.cuts or (0, p.elements)
        outs.append(list(itertools.pairwise(cuts)))
        ins.append(list(itertools.pairwise(p.input_cuts or cuts)))

    def block(i, bounds, place, whole, number):
        one, p = every[i]
        first, end = bounds[number]
        return one.at(place(p).plus(first if whole else 0), end - first)

    source, target = (lambda p: p.source), (lambda p: p.target)
    moves = []
    if name == "copy":
        moves = [
            (block(0, outs[0], target, True, k), block(0, ins[0], source, True, s)) for k, s in enumerate(part.order)
        ]
    elif name == "transpose":
        one = every[0][0]
        matrix = one.at(part.source, part.elements).reshape(part.matrix).swapaxes(0, 1)
        moves = [(one.at(part.target, part.elements), matrix.ravel())]
    elif name in ("reduce", "bcast", "allreduce"):
        vectors = [one.at(p.source, p.elements) for one, p in every]
        if name == "allreduce":
            moves = [(one.at(p.target, p.elements), sum(vectors)) for one, p in every]
        elif name == "reduce":
            moves = [(every[root][0].at(every[root][1].target, part.elements), sum(vectors))]
        else:
            moves = [(one.at(p.target, p.elements), vectors[root]) for one, p in every]
    else:
        for i, k in itertools.product(range(size), range(size)):
            if name == "allgather" or name == "gather" and i == root:
                moves.append((block(i, outs[i], target, True, of(k)), block(k, ins[k], source, False, of(k))))
            if name == "alltoall":
                moves.append((block(i, outs[i], target, True, k), block(k, ins[k], source, True, i)))
        for i in range(size):
            if name == "scatter":
                moves.append((block(i, outs[i], target, False, of(i)), block(root, ins[root], source, True, of(i))))
            if name == "reduce_scatter":
                total = sum(block(k, ins[k], source, True, of(i)) for k in range(size))
                moves.append((block(i, outs[i], target, False, of(i)), total))
    for to, values in [(to, np.array(values)) for to, values in moves]:
        to[:] = values


def operands(collective, size, root, cuts, in_place):
    """Input, result and what the result must be, of every rank."""
    n = cuts[-1]
    blocks = [slice(a, b) for a, b in itertools.pairwise(cuts)]
    rng = np.random.default_rng(n)
    vectors = rng.integers(1, 1 << 40, (size, n))
    for rank in range(size):
        x, own = vectors[rank], blocks[rank]
        if collective in ("allgather", "gather"):
            whole = np.concatenate([vectors[r][blocks[r]] for r in range(size)])
            has = collective == "allgather" or rank == root
            y = np.where((np.arange(n) >= own.start) & (np.arange(n) < own.stop), x, -1) if has and in_place else None
            yield x[own].copy(), (np.full(n, -1) if y is None else y) if has else None, whole if has else None
        elif collective == "allreduce":
            yield x.copy(), x.copy() if in_place else np.full(n, -1), vectors.sum(0)
        elif collective == "reduce_scatter":
            yield x.copy(), np.full(own.stop - own.start, -1), vectors.sum(0)[own]
        elif collective == "scatter":
            given = x.copy() if rank == root else None
            yield given, np.full(own.stop - own.start, -1), vectors[root][own]
        else:
            yield x.copy(), np.full(n, -1), np.concatenate([vectors[r][own] for r in range(size)])


def check(layout, collective, root, cuts, equal, in_place, chance):
    nodes, size = Nodes.of([ord(c) for c in layout]), len(layout)
    ranks, expected = {}, {}
    for rank, (given, result, wanted) in enumerate(operands(collective, size, root, cuts, in_place)):
        same = in_place and result is not None
        op = SUM if collective in ("reduce_scatter", "allreduce") else None
        shape = Shape(collective, root, cuts[-1], 8, -1, op, same, None if equal else cuts)
        source = given if not same else result if collective == "allreduce" else None
        ranks[rank] = Rank(nodes, rank, shape, source, result)
        expected[rank] = wanted
    run(ranks, chance)
    for rank, one in ranks.items():
        if expected[rank] is not None:
            np.testing.assert_array_equal(one.memory[1], expected[rank], f"{layout} {collective} {root} {cuts} {rank}")


def scratch_of(layout, collective, rank, elements, root=0):
    op = SUM if collective == "reduce_scatter" else None
    shape = Shape(collective, root, elements, 4, 0, op, False)
    return parts_of(Nodes.of([ord(c) for c in layout]), rank, shape)[1]


def test_a_rank_that_is_not_the_root_keeps_its_own_part_only():
    """Of a million elements, in segments: slices of what it sends or passes on."""
    for collective, layout in itertools.product(ROOTED, ("abab", "aabb")):
        own = [scratch_of(layout, collective, rank, 1 << 20) for rank in range(1, 4)]
        assert max(own) <= 1 << 20, (collective, layout, own)
        away = [scratch_of(layout, collective, rank, 1 << 20) for rank, c in enumerate(layout) if c == "b"]
        assert max(away) <= 1 << 19, (collective, layout, away)


def test_a_rank_alone_reduces_in_memory_of_a_few_segments():
    endpoint = _core.InProcess(4).endpoint(0)
    shape = Shape("reduce_scatter", 0, 16 << 20, 4, _core.DTYPES.index("float32"), SUM, False)
    plan = hierarchy_plan(Nodes.of([0, 1, 1, 2]), shape, None, endpoint)
    assert plan.footprint < 32 << 20  # of 64 MiB


@pytest.mark.parametrize("most", [2, 256])
@pytest.mark.parametrize("lanes", [1, 2, 16])
def test_segments_of_the_longest_vectors_need_no_more_memory(lanes, most):
    """Two slices of each of the four runs of a lane are staged, and 256 MiB is what a call may need."""
    for elements in (1, 1000, 16 << 20, 16 << 30):
        found = segments(elements, 4, lanes, most)
        assert sum(count for _, count in found) == elements
        assert all(2 * 4 * 4 * count <= lanes * STAGING_LIMIT for _, count in found)
    assert len(segments(16 << 20, 4, lanes, most)) <= most


@pytest.mark.parametrize("layout", [*LAYOUTS, *(pytest.param(layout, marks=pytest.mark.slow) for layout in MORE)])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "gather", "scatter", "alltoall"])
def test_blocks_arrive(layout, collective, monkeypatch):
    chance, size = random.Random(layout), len(layout)
    # Leaders, lanes with one segment, and lanes with more segments than are in flight.
    for leader, segment in ((1 << 30, 1 << 30), (0, 1 << 30), (0, 64)):
        monkeypatch.setattr(hierarchy_parts, "LEADER_OF_OTHERS", leader)
        monkeypatch.setattr(hierarchy_parts, "SEGMENT", segment)
        for each in (0, 1, 3, 37):
            in_place = collective in ("allgather", "gather")
            for root in range(size) if collective in ROOTED else (0,):
                cuts = tuple(range(0, each * size + 1, each)) if each else (0,) * (size + 1)
                check(layout, collective, root, cuts, True, False, chance)
                if in_place:
                    check(layout, collective, root, cuts, True, True, chance)
        if collective in ("allgather", "reduce_scatter"):
            cuts = tuple(itertools.accumulate((chance.choice((0, 0, 1, 5, 80)) for _ in layout), initial=0))
            check(layout, collective, 0, cuts, False, False, chance)


@pytest.mark.parametrize("layout", [*LAYOUTS, *MORE, "aaaabbbb"])
def test_any_number_of_members_reduces(layout, monkeypatch):
    """An all-reduce has one member for each 64 bytes here, up to all ranks of a node."""
    monkeypatch.setitem(hierarchy_parts.LEADER, "allreduce", 64)
    chance, size, widths = random.Random(layout), len(layout), set()
    nodes = Nodes.of([ord(c) for c in layout])
    for elements, in_place in itertools.product((0, 1, 8, 9, 16, 23, 24, 25, 100), (False, True)):
        cuts = (*itertools.repeat(0, size), elements)
        check(layout, "allreduce", 0, cuts, True, in_place, chance)
        shape = Shape("allreduce", 0, elements, 8, -1, SUM, in_place)
        widths.add(hierarchy_parts.Call(nodes, 0, shape).width)
    assert widths == set(range(1, nodes.width + 1))
