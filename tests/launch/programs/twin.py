"""Sums on two ranks, for as long as another job may do the same: twin.py NUMBER, which the sums must be made of."""

import sys

import numpy as np
from mpi4py import MPI

import collectives

NUMBER, CALLS = float(sys.argv[1]), 2000
comm = collectives.Communicator(MPI.COMM_WORLD)
sent, received = np.full(20_000, NUMBER), np.empty(20_000)
for _ in range(CALLS):
    comm.Allreduce(sent, received)
    assert (received == NUMBER * comm.size).all(), received
print("right on rank", comm.rank, flush=True)
