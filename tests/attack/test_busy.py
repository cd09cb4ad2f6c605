"""Cores that other processes want, too: who waits keeps its core, and measurements say that it was shared."""

import os
import re
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest
from calls import program
from jobs import mpiexec

from collectives.core import _core
from collectives.schedules import registry
from collectives.system import machine

pytestmark = pytest.mark.alone
FOREVER = "while True: pass"
SECONDS = 0.4


@pytest.fixture
def shared_core(tally):
    """A single core for this process, which another process computes on all the time."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    other = subprocess.Popen([sys.executable, "-c", FOREVER])  # it inherits the core
    tally.trials += 1
    try:
        time.sleep(0.1)
        yield
    finally:
        other.kill()
        other.wait()
        os.sched_setaffinity(0, before)


def test_who_waits_looks_often(shared_core):
    """A wait that gave way at every poll would look once in each time slice of the other process."""
    patience, looks = _core.Patience(), []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        patience.give_way()
        looks.append(time.monotonic())
    assert statistics.median(np.diff(looks[len(looks) // 2 :])) < 1e-3
    assert len(looks) > 400


def test_ranks_that_outnumber_cores_give_way(shared_core):
    made = program(registry.find("allreduce", "ring"), 0, 2, False)
    plan = _core.Plan(made, _core.InProcess(2, 1, 1 << 40).endpoint(0), 2, 8, _core.DTYPES.index("float64"),
                      _core.OPS.index("sum"), 1, 1)  # fmt: skip
    source, target = np.ones(2), np.zeros(2)
    plan.start(_core.address(source), _core.address(target), 0)
    begin, used = time.monotonic(), time.thread_time()
    while time.monotonic() - begin < SECONDS:
        assert not plan.wait(True, 20_000_000)
    assert (time.thread_time() - used) / (time.monotonic() - begin) < 0.1


@pytest.mark.quick("mpich-shm")
@pytest.mark.parametrize("algorithm", ["shm", "ring"])
def test_ranks_that_share_a_core_unknown_to_them(attack, mpi, algorithm):
    """As on hosts that are namespaces of one machine, also after a process has computed on that core."""
    attack(mpi, 2, "sharing", algorithm, lines=2)


def test_time_without_a_core_is_counted(shared_core):
    waits = machine.CoreWaits()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        pass
    assert 0.2 < waits.share() <= 1
    assert machine.busy(waits.share()).startswith("Busy: ranks waited up to ")


def test_time_asleep_is_not():
    waits = machine.CoreWaits()
    time.sleep(0.2)
    assert waits.share() < 0.5
    assert machine.busy(0.0) is None


@pytest.mark.quick("bench")
@pytest.mark.parametrize("command", ["bench", "tune"])
def test_measurements_say_so(shared_core, command, tmp_path):
    words = {
        "bench": ["bench", "allreduce", "-m", "1024:1024", "-i", "1000", "--json", str(tmp_path / "a.json")],
        "tune": ["tune", "-o", str(tmp_path / "t.json"), "--collectives", "bcast", "--max-size", "1KiB",
                 "--minutes", "0.05"],
    }[command]  # fmt: skip
    done = mpiexec("openmpi", 2, "-m", "collectives", *words, timeout=100, flags=("--bind-to", "none"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^(# )?Busy: ranks waited up to \d+% of the time for a core", done.stdout, re.MULTILINE)


@pytest.mark.slow
def test_beside_computing_processes(mpi, tally):
    """benchmarks/busy.py: within 3 of what the MPI library's own takes."""
    done = mpiexec(mpi, 2, "benchmarks/busy.py", "--check", "--rounds", "20", timeout=200)
    tally.trials += 2 * 3 * 20
    assert done.returncode == 0, done.stdout
