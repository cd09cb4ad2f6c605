"""A rank is killed at a random moment of mixed collectives: the others end or raise in time, and nothing is left."""

import contextlib
import os
import random
import re
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from conftest import MPIS, start
from test_errors import LIVE_ON

from collectives import machine

TIMEOUT = 5  # seconds, of the collectives
MARK = "COLLECTIVES_TEST_JOB"


def processes_of(job):
    """Processes that have the job's mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={job}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def pids(told):
    """The ranks' processes, from what they tell."""
    return {int(rank): int(pid) for rank, pid in re.findall(r"rank (\d+) is (\d+)\n", told)}


def all_pids(results, ranks):
    """The ranks' processes, once all have told."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        found = pids(results.read_text())
        if len(found) == ranks:
            return found
        time.sleep(0.01)
    raise TimeoutError(results.read_text())


def running(pid):
    """Whether a process has not ended."""
    return machine.process(pid)[0] not in "ZX"


def kill_one(mpi, ranks, seed, results):
    """Start a job, kill one rank; seconds until the end of the others, and processes that are left.

    The launcher is none of ours: Open MPI's sometimes waits for a minute after its ranks have ended.
    """
    chance, job = random.Random(seed), uuid.uuid4().hex
    results.touch()
    env = {MARK: job, "COLLECTIVES_TIMEOUT": str(TIMEOUT), "RESULTS": str(results)}
    process = start(mpi, ranks, "tests/mpi/random_kills.py", str(seed), env=env, flags=LIVE_ON[mpi])
    try:
        ours = all_pids(results, ranks)
        time.sleep(chance.random())
        os.kill(ours[chance.randrange(ranks)], signal.SIGKILL)
        begin = time.monotonic()
        while any(map(running, ours.values())) and time.monotonic() < begin + TIMEOUT + 10:
            time.sleep(0.02)
        seconds = time.monotonic() - begin
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=5)
        return seconds, [pid for pid in ours.values() if running(pid)]
    finally:
        process.kill()
        for pid in processes_of(job):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def check(mpi, ranks, seed, folder):
    """A survivor says that a rank died, unless the launcher ends all at once; the job ends; nothing is left."""
    seconds, left = kill_one(mpi, ranks, seed, folder / "results")
    told = (folder / "results").read_text()
    raised = re.findall(r"^rank \d+ raised ([\w.]+)", told, re.MULTILINE)
    at_once = mpi == "mpich" and seconds < 1 and not raised
    assert at_once or "PeerFailure" in raised, told
    assert seconds < TIMEOUT + 5
    assert left == []
    assert [name for pid in pids(told).values() for name in os.listdir("/dev/shm") if f"-{pid}-" in name] == []


@pytest.mark.parametrize("seed", range(5))
def test_some_kills(seed, tmp_path):
    check(MPIS[seed % 3], 3, seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_kills(seed, tmp_path):
    check(MPIS[seed % 3], 2 + seed % 4, seed, tmp_path)
