"""Cores that other processes want, too: who waits keeps its core, and measurements say that it was shared."""

import os
import re
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


def waiting_in_vain(yield_at_once):
    """Share of the core that a rank has which waits for another one that does not come."""
    made = program(registry.find("allreduce", "ring"), 0, 2, False)
    plan = _core.Plan(made, _core.InProcess(2, 1, 1 << 40).endpoint(0), 2, 8, _core.DTYPES.index("float64"),
                      _core.OPS.index("sum"), 1, 1)  # fmt: skip
    source, target = np.ones(2), np.zeros(2)
    plan.start(_core.address(source), _core.address(target), 0)
    begin, used = time.monotonic(), time.thread_time()
    while time.monotonic() - begin < SECONDS:
        assert not plan.wait(yield_at_once, 20_000_000)
    return (time.thread_time() - used) / (time.monotonic() - begin)


def test_who_waits_keeps_its_core(shared_core):
    """A rank that gave way at every poll would have next to nothing of it."""
    assert waiting_in_vain(False) > 0.2


def test_ranks_that_outnumber_cores_give_way(shared_core):
    assert waiting_in_vain(True) < 0.1


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


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_measurements_say_so(shared_core, command, tmp_path):
    words = {
        "bench": ["bench", "allreduce", "-m", "1024:1024", "-i", "3000", "--json", str(tmp_path / "a.json")],
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
