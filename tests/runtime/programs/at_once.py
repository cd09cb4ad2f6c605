"""Two hierarchical calls under way at once: the second must not wait until the first has crossed the links.

Ranks 0 and 1 take themselves for those of host a, rank 2 for that of host b.
"""

import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.system import machine

WORLD = MPI.COMM_WORLD
machine.boot_id = lambda: "a" if WORLD.rank < 2 else "b"
comm = collectives.Communicator(WORLD)
x, y = np.full((2, 3), WORLD.rank + 1.0), np.zeros((2, 3))


def begin():
    """Begin the two calls."""
    return [comm.Iallreduce(x[i], y[i], algorithm="hierarchical") for i in range(2)]


def waits_for(request):
    """The ranks for which the call of a request waits."""
    return request._operation.plan.waiting()


comm.Barrier()
if WORLD.rank == 2:
    WORLD.recv(source=0)
requests = begin()
if WORLD.rank == 0:
    end = time.monotonic() + 10
    while (found := [waits_for(request) for request in requests]) != [[2], [2]] and time.monotonic() < end:
        MPI.Request.Testall(requests)
        time.sleep(0.001)
    WORLD.send(None, dest=2)
    print("waiting for", *found, flush=True)
MPI.Request.Waitall(requests)
assert (y == 6).all(), y
print("right", flush=True)
