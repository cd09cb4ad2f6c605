"""The errors of collectives that cannot end: ``mpiexec -n 3 python examples/errors.py``. See docs/errors.md."""

import time

import numpy as np
from mpi4py import MPI

import collectives

comms = [collectives.Communicator(MPI.COMM_WORLD) for _ in range(2)]
rank = MPI.COMM_WORLD.rank
x, y = np.ones(10), np.empty(10)


def late(comm):
    """Rank 2 does not come to the call."""
    if rank == 2:
        time.sleep(3)
    else:
        comm.Allreduce(x, y, timeout=0.5 + rank)  # rank 0 is the first to give up


def different(comm):
    """Rank 1 calls with another op than the other ranks."""
    comm.Allreduce(x, y, MPI.MAX if rank == 1 else MPI.SUM)


for call, comm in zip((late, different), comms, strict=True):
    try:
        call(comm)
    except collectives.CollectiveError as e:
        if rank == 0:
            print(f"{type(e).__name__}: {e}\n", flush=True)
    MPI.COMM_WORLD.Barrier()
time.sleep(0.2)  # a communicator is broken, so the program ends by MPI_Abort: let the launcher read what was printed
