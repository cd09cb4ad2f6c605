"""Data that stay on their ranks, on real ranks."""

import pytest
from jobs import mpiexec


@pytest.mark.parametrize("ranks", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_samples_that_stay_on_their_ranks(ranks, tmp_path):
    done = mpiexec("openmpi", ranks, "tests/train/data/programs/local_ranks.py", str(tmp_path), timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "passed\n"
