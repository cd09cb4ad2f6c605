"""Training of torch networks on real ranks, by programs in the folder beside."""

import re

import pytest
from jobs import mpiexec

NAMES = ("synchronous_torch", "torch_traps", "averaging_torch", "torch_hostile", "torch_passes")


@pytest.mark.long
@pytest.mark.parametrize("ranks", [3, pytest.param(2, marks=pytest.mark.slow)])
def test_torch_networks_train_on_ranks_as_in_one_process(ranks):
    """In one job, for most of the time that one needs goes by until torch is there."""
    files = [f"tests/train/programs/{name}.py" for name in NAMES]
    done = mpiexec("torch", ranks, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert "skipped" not in done.stdout


def test_backward_passes_of_one_process():
    program = "tests/train/programs/torch_passes.py"
    done = mpiexec("torch", 1, "-m", "pytest", "-q", "-p", "no:cacheprovider", program, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
