"""Random calls against NumPy (programs/random_calls.py): a few hundred on each MPI, and many on Open MPI."""

import os

import pytest
from jobs import mpiexec

RUNS = [("openmpi", 2), ("openmpi", 3), ("openmpi", 5), ("mpich", 2), ("impi", 2)]


def run(mpi, ranks, cases, timeout, threads=1):
    command = ("tests/runtime/programs/random_calls.py", str(cases), str(ranks), str(threads))
    done = mpiexec(mpi, ranks, *command, timeout=timeout, env={"PYTHONPATH": "tests/support:."})
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert f"{cases} cases on {ranks} ranks" in done.stdout
    assert done.stdout.count(" trials, 0 wrong") == ranks


@pytest.mark.quick("openmpi-3", "mpich-2", "impi-2")
@pytest.mark.parametrize(("mpi", "ranks"), RUNS)
def test_some(mpi, ranks):
    run(mpi, ranks, 400, 120)


@pytest.mark.in_turn
def test_several_threads(mpi):
    """Each has communicators of its own."""
    run(mpi, 2, 200, 120, threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_many(ranks):
    """COLLECTIVES_CASES makes it longer: 100000 take half an hour and more, each number of ranks."""
    cases = int(os.environ.get("COLLECTIVES_CASES", "3000"))
    run("openmpi", ranks, cases, 120 + cases / 10)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [17, 32])
def test_every_collective_on_many_ranks(ranks):
    done = mpiexec("openmpi", ranks, "tests/runtime/programs/every_collective.py", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert f"calls on {ranks} ranks: every result right" in done.stdout
