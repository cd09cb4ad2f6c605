"""The number of BLAS threads of a rank: its share of the cores of the node."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

CPU_MAX = Path("/sys/fs/cgroup/cpu.max")
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def _quota() -> float:
    """The CPUs that the control group allows (Linux, cgroup v2), infinite without a limit."""
    try:
        quota, period = CPU_MAX.read_text().split()
        return float(quota) / float(period)
    except (OSError, ValueError):  # no such file; or "max", no limit
        return float("inf")


def threads_per_rank(comm: Any) -> int:
    """The number of this node's usable cores divided by its number of ranks, at least 1. Collective."""
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = min(len(set().union(*node.allgather(mine))), _quota())
    share = max(1, int(cores // node.size))
    node.Free()
    return share


def limit_threads(comm: Any) -> str | None:
    """Limit the BLAS threads of this rank to its share of the node's cores. Collective.

    By default each rank would start a BLAS thread for every core, which is many times slower. If the user has set one
    of the variables ``VARIABLES`` in the environment of this rank, nothing is changed here. Returns None, or a sentence
    for the user if threadpoolctl is not installed.
    """
    share = threads_per_rank(comm)  # also where it is not needed: launchers may set variables on some nodes only
    if any(name in os.environ for name in VARIABLES):
        return None
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return f"threadpoolctl is not installed; if training is slow, pip install it, or set {VARIABLES[0]}={share}"
    threadpool_limits(share)
    return None
