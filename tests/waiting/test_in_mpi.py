"""Waits that MPI makes for this library's requests move them: MPICH and its relatives ask the library to."""

from pathlib import Path

import pytest
from jobs import mpiexec

PROGRAM = Path(__file__).parent / "programs/in_mpi.py"
LIMIT = 2.0  # seconds for 100 waits; they take about 0.01, and 10 or more if the thread alone moves the requests


@pytest.mark.parametrize("mpi", ["mpich", "impi"])
def test_waits_move_requests(mpi):
    done = mpiexec(mpi, 2, PROGRAM, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    took = {name: float(seconds) for name, seconds, _ in map(str.split, done.stdout.splitlines())}
    assert took.keys() == {"Waitall", "test_all", "wait_for_any", "wait_for_some"}, done.stdout
    assert max(took.values()) < LIMIT, took
