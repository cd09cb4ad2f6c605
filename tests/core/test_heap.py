"""The heap: what blocks take, what becomes of what is given back, who may touch it, and what is in a core dump."""

import functools
import gc
import os
import random
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from jobs import ROOT

from collectives.core import _core
from collectives.system import heap, machine, shared_memory

MIB = 1 << 20


def test_blocks_take_what_was_asked():
    own = _core.Heap(1 << 34)
    before, blocks = own.reserved, []
    for nbytes in (65 * MIB, 112 * MIB + 1, 3 * MIB - 1, 100_000, 9000):
        blocks.append(_core.HeapBlock(own, nbytes))
        taken = own.reserved - before
        assert nbytes <= taken <= nbytes + (64 << 10), nbytes  # a page or two; short ones are reserved together
        before = own.reserved


def test_neighbours_that_are_free_are_one():
    """A heap of 1 GiB, filled with blocks of 128 to 256 MiB, has room for 112 and for 1000 when they are free."""
    own, draw = _core.Heap(1 << 30), random.Random(1)
    blocks = [_core.HeapBlock(own, draw.randrange(128 * MIB, 256 * MIB)) for _ in range(4)]
    draw.shuffle(blocks)
    while blocks:
        blocks.pop()
    for nbytes in (112 * MIB, 1000 * MIB):
        block = _core.HeapBlock(own, nbytes)
        del block
    assert own.reserved <= 257 * MIB


def test_heaps_differ_in_several_of_the_bits_that_a_cache_hashes():
    """Else a rank that reads an array of one heap and writes one of another, at a distance of a power of two from the
    same place, would wait for each store."""
    heaps = [_core.Heap(1 << 30) for _ in range(16)]
    blocks = [_core.HeapBlock(one, 10_000) for one in heaps]
    bits = [(block.address - block.offset) >> 21 & 127 for block in blocks]
    assert all((a ^ b).bit_count() >= 3 for i, a in enumerate(bits) for b in bits[:i])


def huge_bytes(own: _core.Heap) -> int:
    """Bytes of a heap that are mapped as huge pages."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            inside = int(first.split("-")[0], 16) in own
        elif inside and first == "ShmemPmdMapped:":
            found += int(line.split()[1]) << 10
    return found


def touched(own: _core.Heap, nbytes: int) -> _core.HeapBlock:
    block = _core.HeapBlock(own, nbytes)
    np.frombuffer(memoryview(block), np.uint8)[::4096] = 1
    return block


def test_long_blocks_have_huge_pages_wherever_they_lie():
    """Where the system gives any: also a block that lies on what short ones have left."""
    own = _core.Heap(1 << 30)
    fresh = touched(own, 64 * MIB)
    given = huge_bytes(own)
    del fresh
    own = _core.Heap(1 << 30)
    short = [touched(own, MIB) for _ in range(70)]
    del short
    again = touched(own, 64 * MIB)
    assert huge_bytes(own) >= given - 4 * MIB
    del again


def test_no_two_heaps_meet_in_the_first_level_cache():
    """The same place of two heaps differs in bits 21 to 24, or AMD's processors keep one of both lines only."""
    heaps = [_core.Heap(1 << 30) for _ in range(16)]
    blocks = [_core.HeapBlock(own, 4096) for own in heaps]
    assert len({block.offset for block in blocks}) == 1
    assert len({block.address >> 21 & 15 for block in blocks}) == 16


def test_a_long_random_life():
    """No block is refused as long as half of the heap suffices; each keeps what was written to it."""
    own, draw, live, total = _core.Heap(256 * MIB), random.Random(5), [], 0
    for i in range(4000):
        nbytes = int(2 ** draw.uniform(6, 24))
        while total + nbytes > 128 * MIB:
            block, size, mark = live.pop(draw.randrange(len(live)))
            view = memoryview(block)
            assert view[0] == view[size - 1] == mark
            total -= size
            del block, view
        block, mark = _core.HeapBlock(own, nbytes), i % 251
        memoryview(block)[0] = memoryview(block)[nbytes - 1] = mark
        live.append((block, nbytes, mark))
        total += nbytes
    assert own.reserved <= total + 257 * MIB


def test_a_write_past_the_end_is_reported():
    script = """
import ctypes
from collectives.core import _core
own = _core.Heap(1 << 24)
block = _core.HeapBlock(own, 100_000)
ctypes.memset(block.address, 1, 100_000)
del block
block = _core.HeapBlock(own, 100_000)
ctypes.c_uint8.from_address(block.address + 100_000).value ^= 1
print("now", flush=True)
del block
_core.HeapBlock(own, 100_000)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("somebody wrote past the end of an array") == 1


def test_arrays_grow_and_shrink():
    with heap.share_arrays(1):
        for length in (10, 1000, 5000, 100_000):
            for other in (1, 20, 3000, 4096, 70_000, 1_000_000):
                array = np.arange(length)
                array.resize(other, refcheck=False)
                same = min(length, other)
                assert (array[:same] == np.arange(same)).all()
                assert not array[same:].any()
                assert array.ctypes.data in heap.process_heap()


def test_peers_cannot_cut_memory_off():
    own = _core.Heap(MIB)
    fd = int.from_bytes(own.identify()[8:16], "little")
    peer = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    for length in (0, 2 * MIB):
        with pytest.raises(PermissionError):
            os.ftruncate(peer, length)
    os.close(peer)


def test_only_sealed_memory_is_attached():
    """A file of the right length and nonce, but one that its owner can shorten."""
    own = _core.Heap(MIB)
    identity, nonce = bytearray(own.identify()), own.identify()[24:32]
    fd = os.memfd_create("other")
    os.write(fd, nonce)
    os.ftruncate(fd, MIB)
    identity[8:16] = fd.to_bytes(8, "little")
    identity[32:40] = bytes(8)  # not the base of a heap of this process
    with pytest.raises(OSError, match="."):
        _core.Mapping(bytes(identity))
    os.close(fd)


DUMPED = """
import os, sys
from collectives.core import _core
own = _core.Heap(1 << 30)
hole = _core.HeapBlock(own, 400 << 20)
kept = _core.HeapBlock(own, 8 << 20)
memoryview(kept)[:] = b"in the dump: yes" * (1 << 19)
del hole
print(own.identify().hex(), flush=True)
peer = _core.Mapping(bytes.fromhex(input())) if sys.argv[1] == "peer" else None
dumped = {}
for line in open("/proc/self/smaps"):
    if "memfd:collectives" in line:
        begin, end = (int(x, 16) for x in line.split()[0].split("-"))
    elif line.split()[0].endswith("-") or "-" in line.split()[0]:
        begin = end = 0
    elif line.startswith("VmFlags") and " dd" not in line:
        dumped[begin] = end - begin
print(sum(dumped.values()), flush=True)
input()
os.abort()
"""


def test_core_dumps_fill_nothing(tmp_path):
    """The owner's dump has what is reserved and a peer's none of it; neither gives holes memory."""
    core = resource.getrlimit(resource.RLIMIT_CORE)[1]

    def dumping(who):
        return subprocess.Popen(
            [sys.executable, "-c", DUMPED, who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (core, core)),
        )  # fmt: skip

    with dumping("owner") as owner, dumping("peer") as peer:
        identity = bytes.fromhex(owner.stdout.readline())
        fd = os.open(f"/proc/{owner.pid}/fd/{int.from_bytes(identity[8:16], 'little')}", os.O_RDWR)
        peer.stdout.readline()
        peer.stdin.write(identity.hex() + "\n")
        peer.stdin.flush()
        for process in (owner, peer):
            assert int(process.stdout.readline()) <= 16 * MIB  # 8 MiB in chunks of 4
        before = os.fstat(fd).st_blocks * 512
        assert before <= 9 * MIB
        for process in (peer, owner):
            process.communicate("\n")
    filled = os.fstat(fd).st_blocks * 512
    os.close(fd)
    assert filled <= before + 8 * MIB
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if core == resource.RLIM_INFINITY and "/" not in pattern and not pattern.startswith("|"):
        cores = [b"in the dump: yes" * 1000 in found.read_bytes() for found in tmp_path.glob("core*")]
        assert any(cores)


def test_nearest_common_ancestor():
    sleepers = [subprocess.Popen(["sh", "-c", "sleep 60; true"]) for _ in range(2)]
    try:
        assert shared_memory.common_ancestor([s.pid for s in sleepers]) == os.getpid()
        assert shared_memory.common_ancestor([sleepers[0].pid]) == sleepers[0].pid
        assert shared_memory.common_ancestor([os.getpid(), 1]) is None
        assert shared_memory.common_ancestor([os.getpid(), 1 << 22]) is None  # no such process
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def joined(ranks: int) -> list[shared_memory._core.Node | None]:
    """The groups of ranks that are threads of this process."""
    places, meet = [None] * ranks, threading.Barrier(ranks)
    offers, areas = zip(*(shared_memory.offer() for _ in range(ranks)), strict=True)

    def rank(me):
        def exchange(mine):
            places[me] = mine
            meet.wait(60)
            found = list(places)
            meet.wait(60)
            return found

        return shared_memory.join(me, ranks, dict(enumerate(offers)), areas[me], exchange)[1]

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(rank, range(ranks)))


@pytest.mark.parametrize("scope", [0, 1, 2])
def test_private_memory_is_opened_only_where_it_is_asked_for(monkeypatch, scope):
    admitted = []
    monkeypatch.setattr(machine, "ptrace_scope", lambda: scope)
    monkeypatch.setattr(_core, "let_read", admitted.append)
    monkeypatch.setattr(shared_memory, "_reader", None)
    assert all(joined(2))
    assert set(admitted) == ({os.getpid()} if scope == 1 else set())  # the ranks are threads


def test_a_heap_admits_no_tracer(tmp_path):
    """Nothing calls PR_SET_PTRACER where the system does not ask for it."""
    source = "#include <stdio.h>\n#include <sys/prctl.h>\nint prctl(int what, ...) { printf("
    source += '"prctl %d\\n", what == PR_SET_PTRACER); fflush(stdout); return 0; }\n'
    (tmp_path / "prctl.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "prctl.c", "-o", tmp_path / "prctl.so"], check=True)
    script = "from collectives.core import _core; h = _core.Heap(1 << 20); _core.Mapping(h.identify()); print('made')"
    variables = {**os.environ, "LD_PRELOAD": str(tmp_path / "prctl.so")}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=variables)
    assert "made" in done.stdout, done.stderr
    assert "prctl 1" not in done.stdout


def test_memory_is_reserved_under_a_fast_timer(tmp_path):
    """Linux frees what an interrupted call has reserved, so that a piece longer than the timer's period never ends."""
    source = "#include <errno.h>\n#include <sys/types.h>\n"
    for suffix in ("", "64"):
        source += f"int posix_fallocate{suffix}(int f, off_t at, off_t n) {{ return n > (1 << 20) ? EINTR : 0; }}\n"
    (tmp_path / "timer.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "timer.c", "-o", tmp_path / "timer.so"], check=True)
    script = "from collectives.system import heap; print(heap.empty(200 << 20, 'u1').nbytes >> 20)"
    variables = {**os.environ, "LD_PRELOAD": str(tmp_path / "timer.so")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env=variables, timeout=60
    )
    assert done.stdout == "200\n", done.stderr


#: Controllers in /proc/self/cgroup, and where the group and its limit are: both versions of control groups.
GROUPS = {"memory": ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), "": ("/sys/fs/cgroup", "memory.max")}


@pytest.fixture
def small_group():
    """A control group below this process's own, in which no more than 400 MiB fit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root, limit = GROUPS.get(controllers, ("", ""))
        group = Path(f"{root}{path}") / f"collectives-{os.getpid()}"
        if not root or not (group.parent / "cgroup.procs").exists() or os.geteuid() != 0:
            continue
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / limit).exists():
                (group / limit).write_text(str(400 * MIB))
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("needs root, and a memory controller in which a group can be made")


IN_A_SMALL_GROUP = """
from collectives.core import _core
own = _core.Heap(1 << 34)
def block(mib):
    try:
        return _core.HeapBlock(own, mib << 20)
    except MemoryError:
        return None
first = block(256)
print(first is not None, block(256) is None)
first = None
print(block(256) is not None)
some = []
while (one := block(32)) is not None:
    some.append(one)
print(5 <= len(some) <= 12)
del some
print(block(256) is not None)
"""


def test_a_control_group_is_not_overrun(small_group):
    """The kernel would kill the process: for a second long block, and for one of many short ones."""
    enter = 'echo $$ > "$0/cgroup.procs" && exec "$1" -c "$2"'
    done = subprocess.run(
        ["sh", "-c", enter, small_group, sys.executable, IN_A_SMALL_GROUP], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"True"}, done.stdout
    assert len(done.stdout.split()) == 5


def test_forks_leave_nothing():
    """Files and memory that forked children held go when they do."""
    own, files = heap.process_heap(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        array = heap.empty(MIB, np.uint8)
        child = os.fork()
        if child == 0:
            array[:] = 1
            os._exit(0)
        array[:] = 2
        del array
        os.waitpid(child, 0)
    gc.collect()
    assert own.reserved <= 300 * MIB
    assert len(os.listdir("/proc/self/fd")) <= files + 1


def test_two_threads_make_one_heap(monkeypatch):
    made = []

    def slow():
        made.append(object())
        time.sleep(0.05)
        return made[-1]

    monkeypatch.setattr(heap, "_process_heap", functools.cache(slow))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: heap.process_heap(), range(2))
    assert first is second is made[0]
