"""The C executor over in-process mailboxes: all algorithms, types, ops and counts, in random interleavings."""

import functools
import random

import numpy as np
import pytest
from operands import ALL, DTYPES, check, operands

from collectives import _core, registry, schedule

ALGORITHMS = [n for n in registry.algorithms("allreduce") if isinstance(
    registry.find("allreduce", n), registry.ScheduleAlgorithm
)]  # fmt: skip


@functools.cache
def program(name, rank, size, in_place):
    s = schedule.build(registry.find("allreduce", name), rank, size)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place)


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


def allreduce(name, size, dtype, op, count, segments=1, depth=2, in_place=False, seed=1):
    """One all-reduce of all ranks; checks the sums, and that all ranks hold the same bits."""
    vectors = operands(dtype, op, size, count, seed)
    group = _core.InProcess(size, seed)
    results = [v.copy() if in_place else np.zeros_like(v) for v in vectors]
    plans = []
    for rank in range(size):
        plan = _core.Plan(
            program(name, rank, size, in_place), group.endpoint(rank), count, DTYPES[dtype].itemsize,
            _core.DTYPES.index(dtype), _core.OPS.index(op), segments, depth,
        )  # fmt: skip
        source = results if in_place else vectors
        plan.start(_core.address(source[rank]), _core.address(results[rank]), 0)
        plans.append(plan)
    interleave(plans, random.Random(seed))
    check(dtype, op, vectors, results[0])
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()


def counts(size):
    """Counts around the number of ranks, odd ones, and one that fills caches."""
    return sorted({0, 1, size - 1, size, size + 1, 37, 1009})


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", range(1, 34))
def test_every_size_and_count(name, size):
    chance = random.Random(f"{name} {size}")
    for count in counts(size):
        dtype = chance.choice(("int32", "float64"))
        segments, depth = chance.randint(1, 4), chance.randint(1, 4)
        allreduce(name, size, dtype, "sum", count, segments, depth, chance.random() < 0.5, chance.randrange(1, 1 << 30))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(("dtype", "op"), ALL)
def test_every_type_and_op(name, dtype, op):
    for size, count in ((2, 65), (5, 129), (7, 3)):
        allreduce(name, size, dtype, op, count, segments=2, seed=size)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_long_vectors(name):
    for segments in (1, 2, 3, 4):
        allreduce(name, 6, "float32", "sum", 100_003, segments, segments, in_place=segments % 2 == 0, seed=segments)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", range(1, 34))
def test_everything(name, size):
    chance = random.Random(size)
    for dtype, op in ALL:
        for count in chance.sample(counts(size), 2):
            segments = chance.randint(1, 4)
            allreduce(name, size, dtype, op, count, segments, segments, chance.random() < 0.5, seed=count + 1)


def test_several_runs_at_once():
    """Different tags on the same endpoints, and plans that run again."""
    size, chance = 5, random.Random(3)
    group = _core.InProcess(size, 7)
    vectors = operands("int64", "sum", size, 101)
    results = [[np.zeros_like(v) for v in vectors] for _ in range(3)]
    code = _core.DTYPES.index("int64")
    plans = [
        _core.Plan(program(name, rank, size, False), group.endpoint(rank), 101, 8, code, 0, 2, 2)
        for name in ("ring", "tree", "circulant") for rank in range(size)
    ]  # fmt: skip
    for _ in range(3):
        for i, plan in enumerate(plans):
            call, rank = divmod(i, size)
            results[call][rank][:] = 0
            plan.start(_core.address(vectors[rank]), _core.address(results[call][rank]), 4 * call)
        interleave(plans, chance)
        for result in (r for call in results for r in call):
            check("int64", "sum", vectors, result)


def test_a_missing_rank_is_named():
    group = _core.InProcess(3)
    vector = np.ones(9, np.int32)
    plan = _core.Plan(program("ring", 0, 3, True), group.endpoint(0), 9, 4, _core.DTYPES.index("int32"), 0)
    plan.start(_core.address(vector), _core.address(vector), 0)
    for _ in range(100):
        assert not plan.progress()
    assert plan.waiting() == [1, 2]
    assert plan.busy
    with pytest.raises(ValueError, match="start"):
        plan.start(_core.address(vector), _core.address(vector), 0)


def test_counts_that_differ_are_an_error():
    group = _core.InProcess(2)
    vectors = [np.ones(10, np.int32), np.ones(12, np.int32)]
    plans = [
        _core.Plan(program("recursive_doubling", rank, 2, True), group.endpoint(rank), len(v), 4, 3, 0)
        for rank, v in enumerate(vectors)
    ]
    for plan, vector in zip(plans, vectors, strict=True):
        plan.start(_core.address(vector), _core.address(vector), 0)
    with pytest.raises(_core.MismatchError, match="another length"):
        interleave(plans, random.Random(1))


def test_malformed_schedules_are_refused():
    """Any change to a record is refused, or at least built without harm; what is out of range always is."""
    chance = random.Random(5)
    for name in ALGORITHMS:
        good = schedule.build(registry.find("allreduce", name), 1, 6)
        for field in ("kind", "round", "peer", "block", "nblocks", "dst", "left", "right", "src_block"):
            for value in (-(2**31), -7, -3, 6, 7, 100, 2**31 - 1):
                steps = good.steps.copy()
                steps[field][chance.randrange(len(steps))] = value
                try:
                    _core.Program(steps, 6, good.nblocks, good.scratch, False)
                except ValueError as e:
                    assert "malformed schedule" in str(e)  # noqa: PT017
        for field, value in (("kind", 9), ("round", 10**6), ("nblocks", 10**6), ("block", -1)):
            steps = good.steps.copy()
            steps[field][0] = value
            with pytest.raises(ValueError, match="step 0: malformed"):
                _core.Program(steps, 6, good.nblocks, good.scratch, False)
    with pytest.raises(ValueError, match="STEP"):
        _core.Program(np.zeros(3, np.int32), 2, 1, 0, False)
