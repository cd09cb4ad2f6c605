"""Training of torch networks on real ranks, by programs in the folder beside."""

import re

import pytest
from jobs import mpiexec

NAMES = ("synchronous_torch", "torch_traps", "torch_hostile", "averaging_torch")
RUNS = [(name, 3) for name in NAMES] + [pytest.param(name, 2, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize(("name", "ranks"), RUNS)
def test_torch_networks_train_on_ranks_as_in_one_process(name, ranks):
    program = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/train/programs/{name}.py")
    done = mpiexec("torch", ranks, *program, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert "skipped" not in done.stdout
