"""All-reduce of ranks that take themselves for those of several hosts: argument 1 names the host of each rank.

Sums are right for lengths around the limits of the defaults, and have the same bits on all ranks.
"""

import sys

import numpy as np
from mpi4py import MPI

import collectives
from collectives.system import machine

WORLD = MPI.COMM_WORLD
HOST = sys.argv[1].split(",")[WORLD.rank]
machine.boot_id = lambda: HOST

comm = collectives.Communicator(WORLD)
for algorithm in (None, "circulant", "ring"):
    for count in (1, 7, 4099, 100_003, 300_007, 600_000):
        x = np.random.default_rng(WORLD.rank).random(count, np.float32)
        y, expected = np.empty_like(x), np.empty(count)
        comm.Allreduce(x, y, algorithm=algorithm)
        WORLD.Allreduce(x.astype(np.float64), expected)
        assert np.allclose(y, expected, rtol=1e-5), (algorithm, count)
        assert len(set(WORLD.allgather(y.tobytes()))) == 1, (algorithm, count)
        comm.Allreduce(MPI.IN_PLACE, x, algorithm=algorithm)
        assert x.tobytes() == y.tobytes(), (algorithm, count)
        comm.Iallreduce(y, x, op=MPI.MAX).Wait()
        assert x.tobytes() == y.tobytes(), (algorithm, count)
if WORLD.rank == 0:
    print("\n".join(comm.explain("allreduce", nbytes) for nbytes in (8, 100_000, 4 << 20)))
print(f"right on rank {WORLD.rank}", flush=True)
