"""The default collectives of ranks on several hosts, on each MPI."""

from pathlib import Path

import pytest
from jobs import mpiexec

PROGRAM = Path(__file__).parent / "programs/several_hosts.py"


@pytest.mark.quick("openmpi-a,b,b,c")
@pytest.mark.in_turn
@pytest.mark.parametrize("layout", ["a,a,b,b", "a,b,a,b", "a,b,b,c", "a,a,b,b,c,c"])
def test_sums_are_right(mpi, layout):
    ranks = layout.count(",") + 1
    done = mpiexec(mpi, ranks, PROGRAM, layout, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("right on rank") == ranks
    assert "ranks in lanes" in done.stdout, done.stdout
