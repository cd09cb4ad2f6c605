"""On a ring of 4 ranks, rank 2 does not come to an exchange with the neighbours: what the others are told.

The exchange is the first argument; the second one is an algorithm.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD).Create_cart([4], [True])
name, algorithm = sys.argv[1:]
x, y = np.full(4, comm.rank), np.zeros((2, 4), int)
if "alltoall" in name:
    x = np.repeat(x, 2)
if comm.rank == 2:
    time.sleep(2)
else:
    try:
        getattr(comm, name)(x, y, timeout=0.5, algorithm=algorithm)
        print(f"rank {comm.rank}: from {y[:, 0].tolist()}", flush=True)
    except collectives.CollectiveTimeout as e:
        print(f"rank {comm.rank}: {str(e).splitlines()[0]}", flush=True)
        time.sleep(1)  # before the abort, so that the launcher reads what is printed
