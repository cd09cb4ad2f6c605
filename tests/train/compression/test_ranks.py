"""Compressions on ranks of the three MPIs."""

import pytest
from jobs import ROOT, mpiexec

PROGRAM = ROOT / "tests/train/compression/programs/exchange.py"


@pytest.mark.in_turn
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_do_what_ranks_in_lockstep_do(mpi, ranks):
    done = mpiexec(mpi, ranks, PROGRAM, timeout=120, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"})
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr
