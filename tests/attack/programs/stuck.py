"""Rank 0 is kept by MPI for ever in a call of ours, by a library loaded before MPI's: `stuck.py CASE SHIM [HOW]`.

Rank 1 is late, or it dies, ends its program or makes another call; what rank 0 says comes from another of its threads.
"""

import ctypes
import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

CASES = {  # the bits of MPI's functions that hang, and the call
    "isend": (1, lambda: comm.Allreduce(x, y, algorithm="ring")),
    "testsome": (2, lambda: comm.Allreduce(x, y, algorithm="ring")),
    "request": (3, lambda: comm.Iallreduce(x, y, algorithm="ring").Wait()),
    "starting": (4, lambda: comm.Allreduce(x, y, algorithm="mpi")),
    "testing": (16, lambda: comm.Iallreduce(x, y, algorithm="mpi").Wait()),
    "blocking": (8, lambda: comm.Allreduce(x, y, algorithm="mpi")),
}
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
case, shim, *how = sys.argv[1:]
bit, call = CASES[case]
comm = collectives.Communicator(MPI.COMM_WORLD)
x, y = np.ones(1000), np.empty(1000)
comm.Allreduce(x, y, algorithm="ring")
comm.Barrier()
if comm.rank:
    time.sleep(1)
    if how == ["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == ["ends"]:
        sys.exit()
    elif how == ["differs"]:
        try:
            comm.Allreduce(x, y, MPI.MAX, algorithm="ring", timeout=1000)
        except collectives.CollectiveMismatch:
            pass  # and is still there when rank 0 looks
    time.sleep(1000)
ctypes.c_int.in_dll(ctypes.CDLL(shim), "collectives_stuck").value = bit
print(f"rank 0: {os.getpid()}", flush=True)
call()  # from where it does not come back
print("it came back", flush=True)
