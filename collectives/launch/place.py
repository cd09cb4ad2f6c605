"""The rank of this process, according to MPI or the launcher."""

from __future__ import annotations

import os
import sys

__all__ = ["place"]


#: Environment variables by which launchers tell a process its rank and the number of ranks.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def place() -> tuple[int, int]:
    """This process's rank and the number of ranks: by MPI if it runs, else by the launcher, else (0, 1)."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        return mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size
    for names in LAUNCHERS:
        if all(name in os.environ for name in names):
            rank, size = (int(os.environ[name]) for name in names)
            return rank, size
    return 0, 1
