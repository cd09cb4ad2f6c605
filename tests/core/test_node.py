"""The node-local engine: its C code under threads, sanitizers and a model checker; its Python side in one process."""

import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from drivers import DRIVER_FLAGS, compile_driver, run
from fuzz import ENGINE
from jobs import ROOT
from kernel_lib import SOURCES, compile_all
from node_groups import gathering

from collectives.arguments.shape import Shape
from collectives.core import _core
from collectives.system import heap, shared_memory

KINDS = 10  # collectives that the drivers know; 1: all-reduce alone


@pytest.fixture(scope="module")
def driver(tmp_path_factory, kernel_objects) -> Path:
    """The engine driven by threads."""
    return compile_driver(tmp_path_factory.mktemp("driver") / "driver", "node_driver.c", kernels=kernel_objects)


@pytest.mark.quick("1-10", "2-10", "3-10", "4-10", "8-10", "20-10", "64-10", "3-1")
@pytest.mark.parametrize("kinds", [1, KINDS])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8, 20, 64])
def test_threads(driver, ranks, kinds):
    calls = 2000 if ranks <= 8 else 60
    assert f"{calls} calls on {ranks} ranks: every result right" in run(driver, ranks, calls, ranks, 100_000, kinds)


def test_long_vectors_in_threads(driver):
    """They go round the ring. Elements have every size up to 4096 bytes, and numbers wrap (node_calls.h)."""
    for ranks, seed in ((2, 2), (2, 3), (3, 6)):
        assert "every result right" in run(driver, ranks, 40, seed, 3_000_000, KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_many_small_calls_with_delays(driver, ranks):
    """Ranks stop at random; every result is checked. COLLECTIVES_STRESS makes it longer: 1e8 takes some minutes, more
    if there are more ranks than cores, each of which waits for turns."""
    usual = "2e6" if ranks <= len(os.sched_getaffinity(0)) else "2e5"
    calls = int(float(os.environ.get("COLLECTIVES_STRESS", usual)))
    assert "every result right" in run(driver, ranks, calls, 11, 14, 1, timeout=3600)


@pytest.mark.slow
def test_thread_sanitizer(tmp_path):
    flags = [*DRIVER_FLAGS, "-fsanitize=thread"]
    kernels = compile_all(tmp_path, SOURCES, flags)
    driver = compile_driver(tmp_path / "driver", "node_driver.c", "-fsanitize=thread", kernels=kernels)
    for ranks in (2, 3, 4):  # -R: the sanitizer wants the usual layout of memory
        assert "every result right" in run(driver, ranks, 800, 7, 5000, KINDS, prefix=("setarch", "-R"))


def test_address_sanitizer(tmp_path, kernel_objects):
    flags = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    driver = compile_driver(tmp_path / "driver", "node_driver.c", *flags, kernels=kernel_objects)
    for ranks in (2, 5):
        assert "every result right" in run(driver, ranks, 1000, 3, 30_000, KINDS)


@pytest.mark.quick("3", "18")
@pytest.mark.parametrize("ranks", [2, 3, 5, 18])
def test_random_interleavings(model, ranks):
    for seed in range(5):
        assert "every result right" in run(
            model, ranks, 3000 if ranks < 9 else 200, seed, 6000, 1 if seed == 0 else KINDS
        )


MODEL_FLAGS = [*DRIVER_FLAGS, "-DCOLL_MODEL"]


@pytest.fixture(scope="module")
def objects(tmp_path_factory, kernel_objects) -> list[Path]:
    """What the model is linked from."""
    sources = [*(ROOT / "csrc" / name for name in ENGINE), ROOT / "tests/csrc/node_model.c"]
    return compile_all(tmp_path_factory.mktemp("objects"), sources, MODEL_FLAGS) + kernel_objects


def link(target: Path, objects: list[Path]) -> Path:
    subprocess.run(["cc", *objects, "-o", target, "-pthread"], check=True)
    return target


@pytest.fixture(scope="module")
def model(tmp_path_factory, objects) -> Path:
    """The engine driven by a model checker."""
    return link(tmp_path_factory.mktemp("model") / "model", objects)


def mistaken(folder: Path, objects: list[Path], file: str, right: str, wrong: str) -> Path:
    """The model of an engine with a mistake; nothing else is compiled again."""
    shutil.copytree(ROOT / "csrc", folder, dirs_exist_ok=True)
    text = (folder / file).read_text()
    assert right in text
    (folder / file).write_text(text.replace(right, wrong))
    changed = [file] if file.endswith(".c") else ENGINE
    made = compile_all(folder, [folder / name for name in changed], MODEL_FLAGS)
    names = [each.name for each in made]
    return link(folder / "model", [*made, *(each for each in objects if each.name not in names)])


def quit_sometimes(program: Path, seeds: range, ranks: tuple[int, ...] = (2, 3, 5)) -> None:
    """A rank or two give up a call at any moment, and use their arrays again; all others look on."""
    for seed, size in itertools.product(seeds, ranks):
        assert "every result right" in run(
            program, size, 12, seed, 6000, KINDS if seed % 2 else 1, 1 + seed % 3, timeout=20
        )


def test_ranks_that_give_up_in_threads(driver):
    """Results are right or refused, also where ranks only look whether others gave up or differ."""
    quit_sometimes(driver, range(30))


def test_ranks_that_give_up_in_random_interleavings(model):
    quit_sometimes(model, range(80))


def die_sometimes(model: Path, seeds: range, ranks: tuple[int, ...], longest: int = 6000, kinds: int = KINDS) -> None:
    """A rank dies at any moment: where the others come to a stop, one of them says that it waits for the dead one."""
    for seed, size in itertools.product(seeds, ranks):
        assert "it is missed" in run(model, size, 1000, seed, longest, kinds, -1, timeout=60)


@pytest.mark.parametrize("seeds", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_a_rank_that_dies_is_missed(model, seeds):
    die_sometimes(model, range(seeds), (2, 3, 5))
    die_sometimes(model, range(seeds // 15), (8, 18))
    die_sometimes(model, range(seeds), (2, 3), *LONG)


#: Vectors that fill the staging ring, in all-reduces.
LONG = 20_000, 1

#: Waits that a call must say it is in: (file, what stands there, what an author would write who overlooks one).
OVERLOOKED = [
    ("node/look.c", "if (keeps_room(c, q))", "if (0)"),
    ("node/phases.c", "int k = needs_room(c)", "int k = -1"),
    ("node/node.c", "            c->after = n->users[s];\n", ""),
]


@pytest.mark.parametrize("mistake", [0, pytest.param(1, marks=pytest.mark.slow), 2])  # 1 is rare
def test_the_model_finds_overlooked_waits(tmp_path, objects, mistake):
    model = mistaken(tmp_path, objects, *OVERLOOKED[mistake])
    with pytest.raises(AssertionError):
        die_sometimes(model, range(3000), (2, 3, 5), *(LONG if mistake == 1 else ()))


#: What a rank that gives up, or one that looks on, must not leave out.
CARELESS = [
    ("node/give_up.c", "    int error = coll_node_given_up(c);", "    int error = COLL_OK;"),
    ("node/give_up.c", "    return coll_node_given_up(c);", "    return COLL_OK;"),
    ("node/give_up.c", "if (q != n->rank && writing && not_before(writing, since))", "if (0)"),
    ("node/phases.c", "            error = coll_node_given_up(c);", "            error = COLL_OK;"),
    ("node/pull.c", "if (!error && p->here == 1 && lies_there(p))", "if (0)"),
    ("node/look.c", "knows_lines(c) ? coll_node_arrived(c, q) : COLL_OK", "coll_node_arrived(c, q)"),
]


@pytest.mark.parametrize("mistake", range(len(CARELESS)))
def test_the_model_finds_careless_ranks(tmp_path, objects, mistake):
    model = mistaken(tmp_path, objects, *CARELESS[mistake])
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        quit_sometimes(model, range(1000))


#: Waits without which the protocol is wrong: (file, what stands there, what a mistaken author would write).
MISTAKES = [
    ("node/phases.c", "all_past(c->node, offsetof(area, copied), progress_of(c, k - ring + 1))", "1"),
    (
        "node/phases.c",
        "offsetof(area, copied), progress_of(c, k - ring + 1)",
        "offsetof(area, reduced), progress_of(c, k - ring + 1)",
    ),
    ("node/phases.c", "k > c->reduced + 1 || !has_room(c, k)", "k > c->reduced + 1"),
    ("node/phases.c", "(in_ring && !has_room(c, k))", "0"),
    ("node/phases.c", "if (own->input && !all_past(n, offsetof(area, done), c->number))", "if (0)"),
    ("node/phases.c", "n->targets[0] = wait_aside ? aside : c->message.output;", "n->targets[0] = c->message.output;"),
    ("node/phases.c", "!all_past(n, offsetof(area, reduced), progress_of(c, k + 1))", "0"),
    ("node/phases.c", "!inputs_here(c, k)", "0"),
    ("node/node.c", "c->number > LINES ? c->number - LINES : 0", "0"),
    ("node/node.c", "n->users[s] != c->number && !coll_node_all_ended(n, n->users[s])", "0"),
    ("node/node.c", "if (c->number % RENEWED < LINES)", "if (0)"),
    ("node/internal.h", "(int64_t)(number - other) >= 0", "number >= other"),
    ("node/pull.c", "slot_in_use(c, k)", "0"),
    ("node/pull.c", "if (!reached(&p->area->staged, progress_of(c, k + 1)))", "if (0)"),
    ("node/pull.c", "c->segments && stays_put(c) && !released(c)", "0"),
    ("node/blocks.h", "(!needs_table(c) || published(c, d).count)", "!needs_table(c)"),
    ("node/blocks.h", "!(folds(c) && c->message.input == c->message.output)", "1"),
    ("node/pull.c", "c->staged < c->segments || total >= AT_ONCE", "c->staged < c->segments"),
    ("node/pull.c", "c->message.input == c->message.output && c->staged <= k && c->staged < c->segments", "0"),
]


def goes_wrong(model: Path, seed: int, kinds: int) -> bool:
    try:
        done = subprocess.run([model, "3", "3000", str(seed), "6000", str(kinds)], capture_output=True, timeout=5)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_the_model_finds_mistakes(tmp_path, objects, mistake):
    model = mistaken(tmp_path, objects, *MISTAKES[mistake])
    assert any(goes_wrong(model, seed, kinds) for seed, kinds in itertools.product(range(4), (KINDS, 1)))


def test_heap_gives_memory_back():
    own = heap.process_heap()
    before = own.reserved
    array = heap.empty(400 << 20, np.uint8)
    assert own.reserved >= before + (400 << 20)
    array[::4096] = 1
    del array
    assert own.reserved <= before + (64 << 10)


def test_heap_arrays():
    odd = [heap.empty(n, np.uint8) for n in (65, 72, 81, 97, 130)]
    assert [array.ctypes.data % 64 for array in odd] == [0] * len(odd)
    array = heap.empty((3, 5), "f4", zero=True)
    assert array.shape == (3, 5)
    assert not array.any()
    assert array.ctypes.data in heap.process_heap()
    assert array.ctypes.data % 64 == 0
    view = array[1:]
    del array
    view[:] = 7  # the memory lives as long as anything that shows it
    assert heap.empty((), "c16").shape == ()
    with pytest.raises(TypeError, match="Python objects"):
        heap.empty(3, object)
    with pytest.raises(MemoryError, match="shared memory"):
        heap.empty(1 << 40, np.uint8)
    with pytest.raises(MemoryError, match="shared memory"):
        _core.HeapBlock(heap.process_heap(), (1 << 63) + 1)


def test_share_arrays():
    own = heap.process_heap()
    with heap.share_arrays(1 << 16):
        large, small = np.ones(1 << 16, "f4"), np.ones(4)
        zeros = np.zeros(1 << 20, np.uint8)
        grown = np.arange(1 << 14, dtype="f8")
        grown.resize(1 << 18, refcheck=False)
        assert large.ctypes.data in own
        assert zeros.ctypes.data in own
        assert not zeros.any()
        assert small.ctypes.data not in own
        assert grown[: 1 << 14].tolist() == list(range(1 << 14))
        assert not grown[1 << 14 :].any()
    after = np.ones(1 << 16, "f4")
    assert after.ctypes.data not in own
    assert large.sum() == 1 << 16


def test_more_memory_than_there_is_is_a_sentence():
    """The kernel would let all of it be reserved, until it has to kill a process."""
    script = """
from collectives.core import _core
own = _core.Heap(1 << 40)
try:
    _core.HeapBlock(own, 1 << 39)
except MemoryError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "bytes of shared memory" in done.stdout


def test_private_memory_is_readable_in_proof_only():
    own = _core.Heap(1 << 20)
    identity = bytearray(own.identify())
    assert _core.Mapping(bytes(identity)).private_is_readable
    identity[0:8] = (1 << 22).to_bytes(8, "little")  # no such process
    assert not _core.Mapping(bytes(identity)).private_is_readable


def test_a_wrong_identity_is_refused():
    identity = bytearray(_core.Heap(1 << 20).identify())
    for place in (24, 16):  # the nonce, the size
        identity[place] ^= 1
        with pytest.raises(OSError, match="."):
            _core.Mapping(bytes(identity))
        identity[place] ^= 1
    with pytest.raises(ValueError, match="identity"):
        _core.Mapping(b"short")


def test_groups():
    def nodes_of(reached):
        return shared_memory.nodes_of([shared_memory.digest_of(ranks) for ranks in reached]).tolist()

    assert shared_memory._why_apart(2, [0], {0: ("", b"", 0)}, {1: PermissionError(13, "no")}) == (
        "rank 1 does not share memory with rank 0: its heap cannot be mapped ([Errno 13] no)"
    )
    assert nodes_of([{0, 1}, {0, 1}, {2}]) == [0, 0, 2]
    assert nodes_of([{0, 3}, {1, 2}, {1, 2}, {0, 3}]) == [0, 1, 1, 0]
    assert nodes_of([{0, 1}, {1}, {2}]) == [0, 1, 2]
    assert nodes_of([set(), set()]) == [0, 1]


def test_threads_in_python():
    size = 3
    gather = gathering(size)
    results: list[np.ndarray | None] = [None] * size

    def live(rank):
        offer, area = shared_memory.offer()
        offers = gather(rank, offer)
        group, engine, apart, *_ = shared_memory.join(
            rank, size, dict(enumerate(offers)), area, lambda value: gather(rank, value)
        )
        assert group == [0, 1, 2]
        assert apart is None
        calls = _core.Calls()
        calls.set_group(rank, size)
        calls.node = engine
        shape = Shape("allreduce", 0, 100_000, 8, _core.DTYPES.index("float64"), _core.OPS.index("sum"), in_place=False)
        operation = _core.Operation(calls, _core.NodePlan(engine, shape))
        out = np.empty(100_000, "f8")
        for _ in range(20):
            vector = np.arange(100_000.0) * (rank + 1)
            operation.start(_core.address(vector), _core.address(out), 0, (vector, out))
            while not operation.wait(True, 10**7):
                pass
        results[rank] = out
        gather(rank, None)  # nobody's engine goes before all have ended

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        np.testing.assert_array_equal(result, np.arange(100_000.0) * 6)


@pytest.mark.parametrize("way", ["hand", "store"])
def test_stores_for_other_ranks_past_the_cache(tmp_path, way):
    """Copies and results for other ranks go past the cache while they are slow through it, and only then."""
    program = tmp_path / "handing"
    sources = [ROOT / "csrc/node/hand.c", ROOT / "tests/csrc/handing_driver.c"]
    subprocess.run(["cc", *DRIVER_FLAGS, *sources, "-o", program], check=True)
    past = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in run(program).splitlines()}
    assert past[f"{way} fast"] == past[f"{way} fast again"] == 0
    assert past[f"{way} now and then"] == 0, "stores that were interrupted alone are no reason"
    assert 60 < past[f"{way} slow"] < 100
    assert past[f"{way} slow for long"] > 985
