"""A collective of all ranks over in-process mailboxes, with operands whose result NumPy knows."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

import numpy as np
from operands import DTYPES, check, operands

from collectives.core import _core
from collectives.schedules import build, registry, schedule

Plan = _core.Plan


@functools.lru_cache(maxsize=20_000)
def schedule_of(algorithm, rank, size, root):
    return build.build(algorithm, rank, size, root)


@functools.lru_cache(maxsize=20_000)
def program(algorithm, rank, size, in_place, root=0):
    s = schedule_of(algorithm, rank, size, root)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block, s.blockwise)


def interleave(plans, chance):
    """Progress random ranks by random small budgets until all are done."""
    live = list(range(len(plans)))
    for _ in range(1_000_000):
        if not live:
            return
        rank = chance.choice(live)
        if plans[rank].progress(chance.choice((1, 64, 4096))):
            live.remove(rank)
    raise AssertionError(f"no end; waiting: {[(r, plans[r].waiting()) for r in live]}")


@dataclass
class Call:
    """One call of all ranks: the algorithm, the shape of the message, and how it is to run.

    ``lengths[i][j]`` are the elements that rank i has for rank j in an alltoall; elsewhere ``lengths[i]`` are those of
    block i. None: blocks as equal as can be of ``count`` elements.
    """

    collective: str
    name: str
    size: int
    count: int = 0
    dtype: str = "int32"
    op: str = "sum"
    root: int = 0
    lengths: list | None = None
    in_place: bool = False
    segments: int = 1
    depth: int = 2
    seed: int = 1
    limit: int = 1 << 40

    def __post_init__(self):
        self.algorithm = registry.find(self.collective, self.name)
        self.spec = self.algorithm.spec
        self.in_place = self.in_place and self.spec.aliases

    def run(self):
        """Run all ranks, and check every result; returns what the ranks hold."""
        inputs, cuts, input_cuts = self._operands()
        group = _core.InProcess(self.size, self.seed, self.limit)
        sources, targets, plans = [], [], []
        for rank in range(self.size):
            source, target = self._memory(inputs[rank], cuts[rank], input_cuts[rank], rank)
            made = program(self.algorithm, rank, self.size, self.in_place, self.root)
            segments = self.segments if self._divisible() else 1
            known = (cuts[rank], input_cuts[rank]) if self.lengths is not None else (None, None)
            plan = Plan(
                made, group.endpoint(rank), cuts[rank][-1], DTYPES[self.dtype].itemsize,
                _core.DTYPES.index(self.dtype), _core.OPS.index(self.op) if self.spec.reduces else None,
                segments, self.depth, *known,
            )  # fmt: skip
            plan.start(*(0 if m is None else _core.address(m) for m in (source, target)), 0)
            sources.append(source)
            targets.append(target)
            plans.append(plan)
        interleave(plans, random.Random(self.seed))
        for rank in range(self.size):
            if sources[rank] is not None and not self.in_place:
                kept = self._part(inputs[rank], input_cuts[rank], self.spec.held(rank, self.root))
                np.testing.assert_array_equal(sources[rank], kept, "the input was changed")
            self._check(rank, inputs, targets, cuts[rank])
        return targets

    def _divisible(self):
        ranks = range(self.size)
        return all(program(self.algorithm, r, self.size, self.in_place, self.root).divisible for r in ranks)

    def _operands(self):
        """Each rank's whole input, and the boundaries of the blocks of VECTOR and of INPUT."""
        size, lengths = self.size, self.lengths
        if lengths is None:
            blocks = self.algorithm.blocks(size) if not self.spec.blockwise else size
            cuts = [_core.partition(self.count, blocks)] * size
            return operands(self.dtype, self.op, size, self.count, self.seed), cuts, cuts
        if self.spec.exchanges:
            cuts = [_sums(row[rank] for row in lengths) for rank in range(size)]
            input_cuts = [_sums(row) for row in lengths]
            inputs = [operands(self.dtype, self.op, size, c[-1], self.seed)[rank] for rank, c in enumerate(input_cuts)]
            return inputs, cuts, input_cuts
        cuts = _sums(lengths)
        inputs = operands(self.dtype, self.op, size, cuts[-1], self.seed)
        if not self.spec.rooted:
            return inputs, [cuts] * size, [cuts] * size
        mine = [_sums(n if r == rank else 0 for r, n in enumerate(lengths)) for rank in range(size)]
        mine[self.root] = cuts  # only the root knows all lengths
        for rank in range(size):
            if rank != self.root:
                inputs[rank] = inputs[rank][: mine[rank][-1]]
        return inputs, mine, mine

    @staticmethod
    def _part(vector, cuts, which):
        if which == schedule.NONE:
            return None
        return vector if which == schedule.ALL else vector[cuts[which] : cuts[which + 1]]

    def _memory(self, vector, cuts, input_cuts, rank):
        """What the rank passes: its input, and memory for the result, each possibly a part of a vector or None."""
        held, owned = self.spec.held(rank, self.root), self.spec.owned(rank, self.root)
        whole = vector.copy() if self.in_place else np.zeros(cuts[-1], vector.dtype)
        if self.collective == "bcast" and rank == self.root:
            whole = vector.copy()
        source = self._part(whole if self.in_place else vector.copy(), input_cuts, held)
        return source, self._part(whole, cuts, owned)

    def _check(self, rank, inputs, targets, cuts):
        if targets[rank] is None:
            return
        owned = self.spec.owned(rank, self.root)
        if self.spec.reduces:
            mask, _ = self.spec.wanted(rank, 0, self.size, self.root)
            parts = [self._part(v, cuts, owned) for r, v in enumerate(inputs) if mask >> r & 1]
            check(self.dtype, self.op, parts, targets[rank])
            if owned == schedule.ALL and self.collective == "allreduce":
                assert targets[rank].tobytes() == targets[0].tobytes()
            return
        expected = [self._block(rank, block, inputs) for block in (range(self.size) if owned < 0 else [owned])]
        np.testing.assert_array_equal(np.concatenate(expected), targets[rank])

    def _block(self, rank, block, inputs):
        """What must be in a block of a rank's result where data is only moved."""
        mask, index = self.spec.wanted(rank, block, self.size, self.root)
        source = mask.bit_length() - 1
        if self.lengths is None:
            cuts = _core.partition(self.count, self.size)
        elif self.spec.exchanges:
            cuts = _sums(self.lengths[source])
        elif self.spec.rooted and source != self.root:
            return inputs[source]  # all that it knows of
        else:
            cuts = _sums(self.lengths)
        return inputs[source][cuts[index] : cuts[index + 1]]


def _sums(lengths):
    return np.concatenate(([0], np.cumsum(list(lengths), dtype=np.int64))).tolist()
