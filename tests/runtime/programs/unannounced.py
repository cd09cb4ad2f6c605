"""Long messages of ranks that take themselves for those of two hosts: argument 1 is the most bytes of a message."""

import sys

import numpy as np
from mpi4py import MPI

import collectives
from collectives.communicator import internal
from collectives.system import machine

WORLD = MPI.COMM_WORLD
MOST = int(sys.argv[1])
alone = collectives.Communicator(WORLD.Split(WORLD.rank))
machine.boot_id = lambda: "ab"[WORLD.rank % 2]
comm = collectives.Communicator(WORLD)

assert internal.side_of(comm).endpoint.message_limit == MOST
assert internal.side_of(alone).endpoint.message_limit > MOST or MOST > 1 << 29
for algorithm in ("ring", "circulant", "recursive_halving", None):
    for count in (1, MOST // 8 % 100_000 + 1, 100_003):
        mine = np.arange(count, dtype=np.int64) * (comm.rank + 1)
        total = np.empty_like(mine)
        comm.Allreduce(mine, total, algorithm=algorithm)
        assert np.array_equal(total, np.arange(count) * sum(range(1, comm.size + 1))), (algorithm, count)
        comm.Bcast(mine, root=comm.size - 1)
        assert np.array_equal(mine, np.arange(count) * comm.size), count
print("right on rank", comm.rank, flush=True)
