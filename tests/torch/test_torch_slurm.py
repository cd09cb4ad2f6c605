"""The backend for torch.distributed under ``srun``, with MPICH; see tests/support/slurm.py for what it needs."""

import pytest
from jobs import ROOT, torch_for
from slurm import Slurm
from torch_jobs import BACKEND, PASSED

PROGRAM = """
import torch, torch.distributed as dist, collectives.torch
dist.init_process_group("collectives")
x = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(x)
print(dist.get_rank(), dist.get_world_size(), x.tolist(), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_srun(tmp_path):
    """Rank and size are Slurm's, by MPI."""
    python = str(ROOT / ".venvs/mpich/bin/python")
    with Slurm(tmp_path) as slurm:
        short = slurm.srun(python, "-c", PROGRAM, env=torch_for("mpich"))
        every = slurm.srun(python, str(ROOT / BACKEND), env=torch_for("mpich"))
    assert short.returncode == 0, short.stderr
    assert sorted(short.stdout.splitlines()) == ["0 2 [3.0, 3.0, 3.0]", "1 2 [3.0, 3.0, 3.0]"]
    assert every.returncode == 0, every.stderr
    assert every.stdout.splitlines() == ["mpi4py is there", PASSED]


def test_without_its_programs(monkeypatch, tmp_path):
    monkeypatch.setattr("slurm.shutil.which", lambda name, path=None: None)
    with pytest.raises(RuntimeError, match="needs root, and the programs munged"):
        Slurm(tmp_path)
