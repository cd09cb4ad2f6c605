"""Pipelines on real ranks, by programs in the folder above."""

import re

import pytest
from jobs import ROOT, mpiexec

RUNS = [("openmpi", "pipelines", 4), ("torch", "pipelines_torch", 2), ("torch", "pipelines_torch_values", 2)]
RUNS += [
    pytest.param("torch", "pipelines_torch", 4, marks=pytest.mark.slow),
    pytest.param("torch", "pipelines_torch_values", 4, marks=pytest.mark.slow),
    pytest.param("torch", "pipelines_transformer", 4, marks=pytest.mark.slow),
    pytest.param("torch", "pipelines_transformer", 8, marks=pytest.mark.slow),
    pytest.param("mpich", "pipelines", 4, marks=pytest.mark.slow),
    pytest.param("impi", "pipelines", 4, marks=pytest.mark.slow),
    pytest.param("openmpi", "pipelines", 8, marks=pytest.mark.slow),
]


@pytest.mark.long("torch-pipelines_torch-2", "torch-pipelines_torch_values-2")
@pytest.mark.parametrize(("mpi", "name", "ranks"), RUNS)
def test_pipelines_train_on_ranks_as_in_one_process(mpi, name, ranks):
    program = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/train/programs/{name}.py")
    done = mpiexec(mpi, ranks, *program, timeout=600, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"\d+ passed", done.stdout)) == ranks
    assert "skipped" not in done.stdout
