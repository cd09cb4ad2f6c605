"""What torch builds on process groups, on Gloo and on ours (programs/above.py), and training with
DistributedDataParallel on ours beside Gloo (programs/training.py)."""

import pytest
from jobs import mpiexec

PROGRAMS = "tests/torch/programs"

RUNS = [("gloo", 2, True), ("collectives", 2, True), ("collectives", 3, True), ("collectives", 4, True)]


@pytest.mark.parametrize(
    ("backend", "ranks"), [pytest.param(*run, marks=pytest.mark.slow if slow else ()) for *run, slow in RUNS]
)
def test_above(backend, ranks, tmp_path):
    done = mpiexec("torch", ranks, f"{PROGRAMS}/above.py", backend, str(tmp_path / "meeting"), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.split() == ["9", "passed"]


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_training(ranks, tmp_path):
    done = mpiexec("torch", ranks, f"{PROGRAMS}/training.py", "collectives", str(tmp_path / "meeting"), timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.split() == ["8", "passed"]


AUTOGRAD = [(4, f"ddp_{name}") for name in ("comparison", "comparison_uneven_inputs")]
AUTOGRAD += [(4, f"ddp_dist_autograd_{name}") for name in ("sparse_grads", "local_vs_remote")]
AUTOGRAD += [(6, f"backward_{name}") for name in ("no_ddp", "ddp_outside", "ddp_outside_uneven_inputs", "ddp_inside")]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "collectives"])
@pytest.mark.parametrize(("ranks", "name"), AUTOGRAD)
def test_distributed_autograd(backend, ranks, name, tmp_path):
    done = mpiexec("torch", ranks, f"{PROGRAMS}/autograd.py", backend, str(tmp_path), f"test_{name}", timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    assert done.stdout.split() == [f"test_{name}", "passed"]
