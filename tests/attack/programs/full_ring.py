"""Ranks run ahead of a root that has died, until they wait for room in their rings: `full_ring.py BYTES`.

The root would have read what the rings hold. Who waits for room is in a call at which nobody has arrived, and waits for
an earlier one.
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

ROOT, TIMEOUT = 0, 20
world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
comm.timeout = TIMEOUT
x = np.ones(int(sys.argv[1]), np.uint8)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
comm.Barrier()
if world.rank == ROOT:
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
begin, found = time.monotonic(), "nothing"
try:
    for _ in range(100):
        comm.Reduce(x, None, MPI.MAX, ROOT)
except collectives.CollectiveError as e:
    found = f"{type(e).__name__}: {e}"
seconds = time.monotonic() - begin
wrong = not found.startswith("PeerFailure") or f"rank {ROOT} died" not in found or seconds > TIMEOUT / 2
print(f"attack: 1 trials, {int(wrong)} wrong", flush=True)
if wrong:
    print(f"rank {world.rank} after {seconds:.1f} s: {found}", flush=True)
time.sleep(2)  # who ends first aborts, and would keep the others from raising
