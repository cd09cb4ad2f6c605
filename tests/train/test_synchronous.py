"""Synchronous training of torch networks on real ranks, by the programs named below."""

import re

import pytest
from jobs import mpiexec


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", ["synchronous_torch", "torch_traps", "torch_hostile"])
def test_torch_networks_train_on_ranks_as_in_one_process(name, ranks):
    program = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/train/programs/{name}.py")
    done = mpiexec("torch", ranks, *program, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert "skipped" not in done.stdout
