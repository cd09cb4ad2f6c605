"""A rank that is late must not keep the messages of many calls: ranks that take themselves for those of three hosts."""

import resource
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.system import machine

WORLD = MPI.COMM_WORLD
CALLS, NBYTES = 40, 4 << 20
machine.boot_id = lambda: str(WORLD.rank)
comm = collectives.Communicator(WORLD)


def peak():
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


mine, every = np.zeros(NBYTES, np.uint8), np.zeros(NBYTES * WORLD.size, np.uint8)
every.fill(1)
comm.Gather(mine, every, 0, algorithm="linear")
before = peak()
if WORLD.rank == 2:
    time.sleep(1.5)
for _ in range(CALLS):
    comm.Gather(mine, every, 0, algorithm="linear")
assert peak() - before < CALLS * NBYTES // 4, peak() - before
print("right on rank", WORLD.rank, flush=True)
