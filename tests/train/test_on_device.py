"""Networks on a GPU, whose place tensors of the CPU take, on real ranks, by a program in the folder beside."""

import re

import pytest
from jobs import mpiexec, torch_for


@pytest.mark.parametrize(("mpi", "ranks"), [("openmpi", 2), ("mpich", 3)])
@pytest.mark.parametrize("program", ["on_device", "on_device_by_hand"])
def test_networks_on_a_device_train_as_on_the_cpu(mpi, ranks, program):
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/train/programs/{program}.py")
    done = mpiexec(mpi, ranks, *words, timeout=300, env=torch_for(mpi))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert "skipped" not in done.stdout
