"""Hierarchical calls on ranks that take themselves for those of several hosts, on each MPI."""

from pathlib import Path

import pytest
from jobs import ROOT, mpiexec

PROGRAM = Path(__file__).parent / "programs/hierarchical.py"


def run(mpi, layout, *more):
    ranks = layout.count(",") + 1
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}
    done = mpiexec(mpi, ranks, PROGRAM, layout, *more, timeout=400, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right on rank") == ranks, done.stdout


@pytest.mark.quick("openmpi-a,b,b")  # whose ranks give way to each other
@pytest.mark.parametrize("layout", ["a,b,a,b,b", "a,b,b"])
def test_results_are_right(mpi, layout):
    run(mpi, layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["a,b,b", "a,b,a,b,b", "a,a,b,b", "a,a,b,b,c,c", "a,a,a,b,b,b,b"])
def test_results_of_every_length_and_root_are_right(mpi, layout):
    run(mpi, layout, "every")


@pytest.mark.in_turn
def test_calls_under_way_at_once_do_not_wait_for_each_other(mpi):
    done = mpiexec(mpi, 3, Path(__file__).parent / "programs/at_once.py", timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for [2] [2]" in done.stdout
    assert done.stdout.count("right") == 3
