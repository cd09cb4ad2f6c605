"""One process group of the ranks of two MPI programs: two times ``mpiexec -n 2 python two_programs.py FILE FIRST``.

A program's ranks are FIRST and FIRST + 1, and meet by the FILE. Each rank prints the kinds of engines of its groups.
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from mpi4py import MPI

import collectives.torch  # noqa: F401

SOON = timedelta(seconds=15)
FIRST = int(sys.argv[2])
RANK = FIRST + MPI.COMM_WORLD.rank
dist.init_process_group("collectives", f"file://{sys.argv[1]}", rank=RANK, world_size=4, timeout=SOON)
groups = [(ranks, dist.new_group(ranks, timeout=SOON)) for ranks in ([0, 1], [0, 3], [2, 3])]
for ranks, group in [(range(4), dist.group.WORLD), *groups]:
    if RANK in ranks:
        x = torch.ones(3)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [len(ranks)] * 3
        print(type(group.engine).__name__, flush=True)
dist.barrier()
dist.destroy_process_group()
