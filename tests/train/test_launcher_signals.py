"""Signals to mpiexec: which of them reach the ranks is what the table of docs/training.md tells."""

import os
import re
import signal
import time

import pytest
from interrupt import end_all, ranks_of
from jobs import MPIS, ROOT, start

PAGE = (ROOT / "docs/training.md").read_text()
PROGRAM = str(ROOT / "tests/train/programs/signals.py")
ROWS = {name: cells.split(" | ") for name, cells in re.findall(r"^\| (SIG\w+)[^|]* \| (.*) \|$", PAGE, re.MULTILINE)}
HELD = 2.0  # seconds in which a rank that is not killed shows that it lives


def until(there):
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


def after(mpi, signum, out):
    """What the ranks of a job have got after a signal to its launcher, and whether they live some seconds later."""
    job = start(mpi, 2, PROGRAM, str(out))
    files = [out / "rank-0", out / "rank-1"]
    ranks = []
    try:
        until(lambda: all(file.exists() and file.read_text().count("alive") > 2 for file in files))
        ranks = ranks_of(job)
        os.kill(job.pid, signum)
        time.sleep(HELD)
        before = [file.stat().st_size for file in files]
        time.sleep(1)
        lives = {file.stat().st_size > size for file, size in zip(files, before, strict=True)}
        (out / "end").touch()
        job.communicate(timeout=60)
    finally:
        end_all(job, ranks)
    got = {tuple(word for word in file.read_text().split() if word != "alive") for file in files}
    assert len(got) == len(lives) == 1, (got, lives)
    return got.pop(), lives.pop()


@pytest.mark.quick("openmpi-SIGINT")
@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["SIGUSR1", "SIGTERM", "SIGINT"])
def test_what_ranks_get(mpi, name, tmp_path):
    got, lives = after(mpi, signal.Signals[name], tmp_path)
    cell = ROWS[name][MPIS.index(mpi)]
    assert cell == ", ".join(got) + ("" if lives else ", killed at once")
