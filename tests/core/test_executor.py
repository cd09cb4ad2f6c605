"""The C executor over in-process mailboxes: all algorithms, types, ops and counts, in random interleavings."""

import ctypes
import itertools
import queue
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import calls
import numpy as np
import pytest
from calls import Call, interleave, program
from jobs import ROOT
from operands import ALL, check, operands

from collectives.core import _core
from collectives.runtime import reference
from collectives.schedules import build, registry, schedule

SOURCES = (
    "base/moves.c",
    "base/ticks.c",
    "schedule/program.c",
    "schedule/executor.c",
    "schedule/executor_new.c",
    "progress/progress.c",
    "progress/patience.c",
    "progress/thread.c",
    "progress/ending.c",
    "transport/inproc.c",
)
FOUND = [registry.find(kind, name) for kind in registry.collectives() for name in registry.algorithms(kind)]
ALGORITHMS = [a for a in FOUND if isinstance(a, registry.ScheduleAlgorithm) and a.collective != "barrier"]
ALLREDUCE = [a for a in ALGORITHMS if a.collective == "allreduce"]
REDUCING = [a for a in ALGORITHMS if a.spec.reduces]
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.collective}-{a.name}")


def counts(algorithm, size):
    """Counts around the number of ranks, odd ones, and one that fills caches; equal blocks where they must be."""
    found = sorted({0, 1, size - 1, size, size + 1, 37, 1009})
    return [n * size for n in found] if algorithm.spec.exchanges or not algorithm.uneven else found


def any_way(algorithm, size, chance):
    """How a call may run: root, place, segments, cursors, order of events, longest message."""
    return {
        "root": chance.randrange(size) if algorithm.spec.rooted else 0,
        "in_place": chance.random() < 0.5,
        "segments": chance.randint(1, 4),
        "depth": chance.randint(1, 4),
        "seed": chance.randrange(1, 1 << 30),
        "limit": chance.choice((1 << 40, 256, 9)),
    }


@each_algorithm
@pytest.mark.parametrize("size", [*range(1, 10), 16, pytest.param(33, marks=pytest.mark.slow)])
def test_every_size_and_count(algorithm, size):
    chance = random.Random(f"{algorithm.collective} {algorithm.name} {size}")
    for count in counts(algorithm, size):
        dtype = chance.choice(("int32", "float64"))
        Call(algorithm.collective, algorithm.name, size, count, dtype, **any_way(algorithm, size, chance)).run()


@each_algorithm
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 17])
def test_blocks_of_any_length(algorithm, size):
    """Given boundaries, empty blocks among them; in alltoallv, others for the input."""
    if not algorithm.uneven or not algorithm.spec.blockwise:
        return
    chance = random.Random(size)
    for most in (1, 7, 300):
        row = [[chance.choice((0, chance.randint(0, most))) for _ in range(size)] for _ in range(size)]
        lengths = row if algorithm.spec.exchanges else row[0]
        way = any_way(algorithm, size, chance)
        Call(algorithm.collective, algorithm.name, size, lengths=lengths, **way).run()


@pytest.mark.parametrize("algorithm", REDUCING, ids=lambda a: f"{a.collective}-{a.name}")
def test_every_type_and_op(algorithm):
    pairs = ALL if algorithm.collective == "allreduce" else random.Random(algorithm.name).sample(ALL, 12)
    for dtype, op in pairs:
        if op == "avg" and algorithm.collective in ("scan", "exscan"):
            continue
        for size, count in ((2, 65), (5, 129), (7, 3)):
            root = size - 1 if algorithm.spec.rooted else 0
            Call(algorithm.collective, algorithm.name, size, count, dtype, op, root, segments=2, seed=size).run()


@each_algorithm
def test_long_vectors(algorithm):
    for segments in (1, 4):
        count = 6 * 8_333 if algorithm.spec.exchanges or not algorithm.uneven else 50_003
        way = {"segments": segments, "depth": segments, "seed": segments, "limit": 25_000 * segments}
        Call(algorithm.collective, algorithm.name, 6, count, "float32", in_place=segments == 1, **way).run()


@pytest.mark.slow
@each_algorithm
@pytest.mark.parametrize("size", [*range(1, 20), 23, 24, 31, 32, 33])
def test_everything(algorithm, size):
    chance = random.Random(size)
    pairs = ALL if algorithm.spec.reduces else [("int8", "sum"), ("float64", "sum"), ("complex128", "sum")]
    for dtype, op in pairs:
        if op == "avg" and algorithm.collective in ("scan", "exscan"):
            continue
        count = chance.choice(counts(algorithm, size))
        Call(algorithm.collective, algorithm.name, size, count, dtype, op, **any_way(algorithm, size, chance)).run()


def test_steps_of_several_given_blocks_are_not_cut_in_segments():
    made = program(registry.find("allgather", "circulant"), 0, 4, False)
    assert not made.divisible
    with pytest.raises(ValueError, match="several blocks runs in one segment"):
        _core.Plan(made, _core.InProcess(4).endpoint(0), 16, 4, 3, None, 2, 2)
    assert program(registry.find("allgather", "ring"), 0, 4, False).divisible
    made = program(registry.find("allreduce", "circulant"), 0, 4, False)
    assert made.divisible
    with pytest.raises(ValueError, match="several blocks runs in one segment"):
        _core.Plan(made, _core.InProcess(4).endpoint(0), 16, 4, 3, 0, 2, 2, [0, 1, 2, 3, 16])


def test_boundaries_that_are_none_are_refused():
    made, end = program(registry.find("allgather", "ring"), 0, 4, False), _core.InProcess(4).endpoint(0)
    for cuts in ([0, 1, 2, 3], [0, 2, 1, 3, 4], [-1, 0, 1, 2, 3], [0, 1, 2, 3, 1 << 62]):
        with pytest.raises(ValueError, match="boundaries|range"):
            _core.Plan(made, end, 4, 4, 3, None, 1, 1, cuts)
    with pytest.raises(ValueError, match="out of range"):
        _core.Plan(program(registry.find("allreduce", "ring"), 0, 4, False), end, 4, 4, 3, None)


class Mailboxes:
    """What the reference executor needs of the communicators of ranks in threads."""

    def __init__(self, size):
        self.queues = {pair: queue.Queue() for pair in itertools.product(range(size), repeat=2)}

    def of(self, rank):
        """The communicator of one rank."""

        def isend(data, peer, tag):
            self.queues[rank, peer].put(data.copy())
            return SimpleNamespace(Wait=lambda: None)

        def irecv(data, peer, tag):
            return SimpleNamespace(Wait=lambda: np.copyto(data, self.queues[peer, rank].get(timeout=20)))

        return SimpleNamespace(Isend=isend, Irecv=irecv)


@each_algorithm
def test_the_reference_executor_finds_the_same(algorithm, monkeypatch):
    """The same schedules in Python, with the calls' own checks."""

    class Plan:
        """Stands for _core.Plan; all ranks run when the first one is asked to progress."""

        def __init__(self, made, end, elements, itemsize, dtype, op, segments, depth, cuts=None, input_cuts=None):
            self.rank, self.cuts, self.input_cuts = end.rank, cuts, input_cuts
            self.elements, self.itemsize, self.dtype, self.op = elements, itemsize, dtype, op

        def start(self, source, target, tag):
            started.append((self, source, target))

        def progress(self, budget):
            with ThreadPoolExecutor(size) as pool:
                list(pool.map(lambda run: self.execute(*run), started))
            started.clear()
            return True

        @staticmethod
        def execute(plan, source, target):
            s = build.build(algorithm, plan.rank, size, root)
            cuts = plan.cuts or _core.partition(plan.elements, s.nblocks)
            for messages in reference.execute(
                s, boxes.of(plan.rank), memory(source), memory(target), plan.itemsize,
                lambda dst, left, right: _core.reduce2(plan.dtype, plan.op, dst, left, right), 0, cuts, plan.input_cuts,
            ):  # fmt: skip
                for message in messages:
                    message.request.Wait()

    def memory(address):
        length = 4 * 4096  # as far as an operand of any test here could reach
        return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address)) if address else None

    monkeypatch.setattr(calls, "Plan", Plan)
    for size, count in ((1, 5), (2, 24), (3, 30), (5, 60), (6, 36)):
        started, boxes, root = [], Mailboxes(size), (size - 1) * algorithm.spec.rooted
        call = Call(algorithm.collective, algorithm.name, size, count, root=root, in_place=size % 2 == 0)
        call.run()
        if algorithm.uneven and algorithm.spec.blockwise:
            lengths = [[(3 * i + j) % 4 for j in range(size)] for i in range(size)]
            lengths = lengths if algorithm.spec.exchanges else lengths[0]
            Call(algorithm.collective, algorithm.name, size, lengths=lengths, root=root).run()


def allreduce(name, rank, size, in_place=False):
    return program(registry.find("allreduce", name), rank, size, in_place)


def test_several_runs_at_once():
    """Different tags on the same endpoints, and plans that run again."""
    size, chance = 5, random.Random(3)
    group = _core.InProcess(size, 7)
    vectors = operands("int64", "sum", size, 101)
    results = [[np.zeros_like(v) for v in vectors] for _ in range(3)]
    code = _core.DTYPES.index("int64")
    plans = [
        _core.Plan(allreduce(name, rank, size), group.endpoint(rank), 101, 8, code, 0, 2, 2)
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
    plan = _core.Plan(allreduce("ring", 0, 3, True), group.endpoint(0), 9, 4, _core.DTYPES.index("int32"), 0)
    plan.start(_core.address(vector), _core.address(vector), 0)
    for _ in range(100):
        assert not plan.progress()
    assert plan.waiting() == [1, 2]
    assert plan.busy
    with pytest.raises(ValueError, match="start"):
        plan.start(_core.address(vector), _core.address(vector), 0)


def test_a_missing_rank_is_named_among_many_messages():
    """In time that grows with their number, not with its square: 100,000 messages, as of one byte each."""
    group = _core.InProcess(2, message_limit=1)
    vector = np.ones(100_000, np.int8)
    plan = _core.Plan(allreduce("naive", 0, 2, True), group.endpoint(0), vector.size, 1, _core.DTYPES.index("int8"), 0)
    plan.start(_core.address(vector), _core.address(vector), 0)
    assert not plan.progress()
    begin = time.monotonic()
    assert plan.waiting() == [1]
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("itemsize", [2**63 + 44, 2**63 - 1, 2**61])
def test_elements_too_long_to_be_addressed(itemsize):
    """None of them, even: found by tests/csrc/fuzz_schedule.c."""
    group = _core.InProcess(4)
    with pytest.raises(ValueError, match="plan"):
        _core.Plan(allreduce("ring", 0, 4, True), group.endpoint(0), 0, itemsize, -1, None, segments=9, depth=3)


def test_counts_that_differ_are_an_error():
    group = _core.InProcess(2)
    vectors = [np.ones(10, np.int32), np.ones(12, np.int32)]
    plans = [
        _core.Plan(
            allreduce("recursive_doubling", rank, 2, True),
            group.endpoint(rank),
            len(v),
            4,
            3,
            0,
        )
        for rank, v in enumerate(vectors)
    ]
    for plan, vector in zip(plans, vectors, strict=True):
        plan.start(_core.address(vector), _core.address(vector), 0)
    with pytest.raises(_core.MismatchError, match="calls differ"):
        interleave(plans, random.Random(1))


def test_malformed_schedules_are_refused():
    """Any change to a record is refused, or at least built without harm; what is out of range always is."""
    chance = random.Random(5)
    for algorithm in ALGORITHMS:
        good = build.build(algorithm, 1, 6)

        def load(steps, good=good):
            layout = good.input_block, good.vector_block, good.blockwise
            return _core.Program(steps, 6, good.nblocks, good.scratch, False, *layout)

        load(good.steps)
        for field in ("kind", "round", "peer", "block", "nblocks", "dst", "left", "right", "src_block"):
            for value in (-(2**31), -7, -3, 6, 7, 100, 2**31 - 1):
                steps = good.steps.copy()
                steps[field][chance.randrange(len(steps))] = value
                try:
                    load(steps)
                except ValueError as e:
                    assert "malformed schedule" in str(e)  # noqa: PT017
        for field, value in (("kind", 9), ("round", 10**6), ("nblocks", 10**6), ("block", -1)):
            steps = good.steps.copy()
            steps[field][0] = value
            with pytest.raises(ValueError, match="step 0: malformed"):
                load(steps)
    with pytest.raises(ValueError, match="STEP"):
        _core.Program(np.zeros(3, np.int32), 2, 1, 0, False)
    nothing = np.zeros(0, schedule.STEP)
    for layout in ((0, 1, 0), (2, 0, 0), (2, -5, 0), (2, 1, -1), (2, 3, 0, False, 3), (2, 3, 0, False, -1, -3)):
        with pytest.raises(ValueError, match="malformed"):
            _core.Program(nothing, *layout[:3], *(layout[3:] or (False,)))


def test_actions_that_all_wait_for_each_other():
    """Each waits for the last before it, not for all: the pairs of these would be more than there are ints."""
    steps = np.zeros(100_000, schedule.STEP)
    steps["kind"], steps["nblocks"], steps["dst"] = schedule.Kind.COPY, 1, schedule.VECTOR
    begin = time.perf_counter()
    _core.Program(steps, 2, 1, 0, False)
    assert time.perf_counter() - begin < 1


def test_more_blocks_than_numbers():
    steps = np.zeros(1, schedule.STEP)
    steps["kind"], steps["nblocks"], steps["dst"] = schedule.Kind.COPY, 1, schedule.VECTOR
    with pytest.raises(MemoryError):
        _core.Program(steps, 2, 1 << 30, 0, False)


def test_memory_that_the_caller_does_not_have_is_never_touched():
    """Steps outside the one block, or in a buffer that is missing."""
    for collective, name, rank, buffer in (
        ("allgather", "ring", 1, "input"), ("reduce_scatter", "ring", 1, "vector"), ("scatter", "linear", 1, "input"),
        ("gather", "linear", 0, "input"), ("bcast", "binomial", 0, "vector"),
    ):  # fmt: skip
        s = build.build(registry.find(collective, name), rank, 4)
        blocks = {"input": s.input_block, "vector": s.vector_block}
        blocks[buffer] = schedule.NONE if blocks[buffer] < 0 else 3
        if collective == "scatter":
            blocks = {"input": s.input_block, "vector": 3}
        with pytest.raises(ValueError, match="malformed"):
            _core.Program(s.steps, 4, s.nblocks, s.scratch, False, blocks["input"], blocks["vector"], True)


def run_driver(target, sanitizers, *runs, driver="executor_driver.c", prefix=()):
    """Compile the executor without Python under sanitizers, and run a driver of it."""
    files = [*(ROOT / "csrc" / name for name in SOURCES), ROOT / "tests/csrc" / driver]
    flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["cc", *flags, *sanitizers, *files, "-o", target, "-pthread"], check=True)
    for words in runs:
        done = subprocess.run([*prefix, target, *words.split()], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr[-6000:]
        assert "all right" in done.stdout


def test_address_sanitizer(tmp_path):
    """Right schedules, and wrong ones: what is not refused must not touch foreign memory."""
    interleaved = [f"interleaved {ranks} 400 {ranks}" for ranks in (1, 2, 3, 5, 8)]
    mutants = [f"mutants {ranks} 4000 {ranks}" for ranks in (1, 2, 3, 5)]
    flags = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    run_driver(tmp_path / "driver", flags, *interleaved, *mutants, "threads 4 300 1")


def test_thread_sanitizer(tmp_path):
    """Ranks in threads, with the progress thread moving their requests beside them."""
    runs = [f"threads {ranks} 600 {ranks}" for ranks in (1, 2, 3, 5)]
    run_driver(tmp_path / "driver", ["-fsanitize=thread"], *runs, prefix=("setarch", "-R"))


def test_queue(tmp_path):
    """What a begin costs, what a pass costs, that every request is looked at, and that the thread wakes."""
    run_driver(tmp_path / "driver", ["-fsanitize=thread"], "", driver="queue_driver.c", prefix=("setarch", "-R"))
