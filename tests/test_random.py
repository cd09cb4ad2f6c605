"""Random calls against NumPy (tests/mpi/random_calls.py): a few hundred on each MPI, and many on Open MPI."""

import os

import pytest
from conftest import mpiexec

RUNS = [("openmpi", 2), ("openmpi", 3), ("openmpi", 5), ("mpich", 2), ("impi", 2)]


def run(mpi, ranks, cases, timeout):
    path = {"PYTHONPATH": "tests:."}
    done = mpiexec(mpi, ranks, "tests/mpi/random_calls.py", str(cases), str(ranks), timeout=timeout, env=path)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert f"{cases} cases on {ranks} ranks" in done.stdout


@pytest.mark.parametrize(("mpi", "ranks"), RUNS)
def test_some(mpi, ranks):
    run(mpi, ranks, 400, 120)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_many(ranks):
    """COLLECTIVES_CASES makes it longer: 100000 take half an hour and more, each number of ranks."""
    cases = int(os.environ.get("COLLECTIVES_CASES", "3000"))
    run("openmpi", ranks, cases, 120 + cases / 10)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [17, 32])
def test_every_collective_on_many_ranks(ranks):
    done = mpiexec("openmpi", ranks, "tests/mpi/every_collective.py", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert f"calls on {ranks} ranks: every result right" in done.stdout
