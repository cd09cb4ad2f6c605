"""The node-local engine: its C code under threads, sanitizers and a model checker; its Python side in one process."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from collectives import _core, heap, node

ROOT = Path(__file__).parent.parent
ENGINE = ["node.c", "node_phases.c", "heap.c"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-w", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"]


def compile_driver(target: Path, driver: str, *flags: str, engine: Path = ROOT / "csrc", kernels: list[Path]) -> Path:
    """Link the engine's sources, a driver and the kernels (sources or objects)."""
    sources = [engine / name for name in ENGINE]
    subprocess.run(
        ["cc", *FLAGS, *flags, *sources, ROOT / "tests/csrc" / driver, *kernels, "-o", target, "-pthread"], check=True
    )
    return target


@pytest.fixture(scope="module")
def kernel_objects(tmp_path_factory) -> list[Path]:
    """The kernels, compiled once for all drivers."""
    folder = tmp_path_factory.mktemp("kernels")
    sources = sorted((ROOT / "csrc/kernels").glob("*.c"))
    subprocess.run(["cc", *FLAGS, "-c", *sources], check=True, cwd=folder)
    return sorted(folder.glob("*.o"))


def run(program: Path, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """What a driver prints; fails when it does."""
    done = subprocess.run([*prefix, program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_threads(tmp_path, kernel_objects, ranks):
    driver = compile_driver(tmp_path / "driver", "node_driver.c", kernels=kernel_objects)
    calls = 3000 if ranks <= 8 else 60
    assert f"{calls} calls on {ranks} ranks: every result right" in run(driver, ranks, calls, ranks, 100_000)


def test_thread_sanitizer(tmp_path):
    kernels = sorted((ROOT / "csrc/kernels").glob("*.c"))
    driver = compile_driver(tmp_path / "driver", "node_driver.c", "-fsanitize=thread", kernels=kernels)
    for ranks in (2, 3, 4):  # -R: the sanitizer wants the usual layout of memory
        assert "every result right" in run(driver, ranks, 800, 7, 5000, prefix=("setarch", "-R"))


def test_address_sanitizer(tmp_path, kernel_objects):
    flags = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    driver = compile_driver(tmp_path / "driver", "node_driver.c", *flags, kernels=kernel_objects)
    for ranks in (2, 5):
        assert "every result right" in run(driver, ranks, 1000, 3, 30_000)


@pytest.mark.parametrize("ranks", [2, 3, 5, 9])
def test_random_interleavings(tmp_path, kernel_objects, ranks):
    model = compile_driver(tmp_path / "model", "node_model.c", "-DCOLL_MODEL", kernels=kernel_objects)
    for seed in range(5):
        assert "every result right" in run(model, ranks, 4000, seed, 6000)


#: Waits without which the protocol is wrong: (file, what stands there, what a mistaken author would write).
MISTAKES = [
    (
        "node_phases.c",
        "if (k >= ring_of(c) && !all_past(n, offsetof(area, reduced), progress_of(c, k - ring_of(c) + 1)))",
        "if (0)",
    ),
    ("node_phases.c", "(!c->everything_shared && !result_slot_free(c, k))", "0"),
    ("node_phases.c", "if (own->input && !all_past(n, offsetof(area, done), c->number))", "if (0)"),
    ("node_phases.c", "n->targets[0] = wait_aside ? aside : c->message.output;", "n->targets[0] = c->message.output;"),
    ("node_phases.c", "!all_past(n, offsetof(area, reduced), progress_of(c, k + 1))", "0"),
    ("node_phases.c", "!inputs_here(c, k)", "0"),
    ("node.c", "n->at = c->at + unit;", ""),
    ("node.c", "lines[c->number & 1]", "lines[0]"),
]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_the_model_finds_mistakes(tmp_path, kernel_objects, mistake):
    file, right, wrong = MISTAKES[mistake]
    for name in [*ENGINE, "node_internal.h"]:
        text = (ROOT / "csrc" / name).read_text()
        if name == file:
            assert right in text
            text = text.replace(right, wrong)
        (tmp_path / name).write_text(text)
    model = compile_driver(tmp_path / "model", "node_model.c", "-DCOLL_MODEL", engine=tmp_path, kernels=kernel_objects)
    found = []
    for seed in range(4):
        try:
            done = subprocess.run([model, "3", "3000", str(seed), "6000"], capture_output=True, timeout=5)
            found.append(done.returncode != 0)
        except subprocess.TimeoutExpired:
            found.append(True)
    assert any(found)


def test_heap_gives_memory_back():
    own = heap.process_heap()
    before = own.reserved
    array = heap.empty(400 << 20, np.uint8)
    assert own.reserved >= before + (400 << 20)
    array[::4096] = 1
    del array
    assert own.reserved <= before + (64 << 10)


def test_heap_arrays():
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


def test_posix_heap_leaves_no_name():
    own = _core.Heap(1 << 24, True)
    names = {f.name for f in Path("/dev/shm").glob("collectives-*")}
    peer = _core.Mapping(own.identify())
    own.unlink()
    assert len(names) == len({f.name for f in Path("/dev/shm").glob("collectives-*")}) + 1
    del peer


def test_a_full_dev_shm_is_a_sentence():
    script = """
import subprocess, sys
from collectives import _core
own = _core.Heap(1 << 40, True)
try:
    _core.HeapBlock(own, 1 << 39)
except MemoryError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "bytes of shared memory" in done.stdout


def test_a_wrong_identity_is_refused():
    identity = bytearray(_core.Heap(1 << 20).identify())
    identity[32] ^= 1  # the nonce
    with pytest.raises(OSError, match="."):
        _core.Mapping(bytes(identity))
    with pytest.raises(ValueError, match="identity"):
        _core.Mapping(b"short")


def test_groups():
    assert node.group_of(0, [{0, 1}, {0, 1}, {2}]) == [0, 1]
    assert node.group_of(2, [{0, 1}, {0, 1}, {2}]) == [2]
    assert node.group_of(0, [{0, 1}, {1}, {2}]) == [0]
    assert node.group_of(1, [set(), set()]) == [1]


def test_threads_in_python():
    size = 3
    exchanged: dict[int, object] = {}
    barrier = threading.Barrier(size)
    results: list[np.ndarray | None] = [None] * size

    def exchange(rank, value):
        exchanged[rank] = value
        barrier.wait()
        everything = [exchanged[i] for i in range(size)]
        barrier.wait()
        return everything

    def live(rank):
        offer, area = node.offer()
        offers = exchange(rank, offer)
        group, engine = node.join(rank, offers, area, lambda value: exchange(rank, value))
        assert group == [0, 1, 2]
        engine.yield_at_once = True
        out = np.empty(100_000, "f8")
        for _ in range(20):
            vector = np.arange(100_000.0) * (rank + 1)
            if _core.node_allreduce(engine, vector, out, MPI.SUM) < 0:
                while not engine.wait(True, 10**7):
                    pass
        results[rank] = out
        barrier.wait()

    _core.know(MPI.IN_PLACE, [(MPI.SUM, _core.OPS.index("sum"))], [(np.dtype("f8").num, _core.DTYPES.index("float64"))])
    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for result in results:
        np.testing.assert_array_equal(result, np.arange(100_000.0) * 6)
