"""Of 4 ranks, two exchange blocks. The others come late, who send them nothing: what the two are told."""

import time

import numpy as np
from mpi4py import MPI

import collectives

world = collectives.Communicator(MPI.COMM_WORLD)
near = [1 - world.rank] if world.rank < 2 else []
comm = world.Create_dist_graph_adjacent(near, near)
counts = [int(rank in near) for rank in range(4)]
if not near:
    time.sleep(6)
n = 1000
x, y = world.empty(n), np.full(n, -1.0)
x[:] = world.rank
placed = [n * c for c in counts], [0] * 4
for name, call in (
    ("Neighbor_alltoall", lambda limit: comm.Neighbor_alltoall(x, y, timeout=limit)),
    ("Alltoallv", lambda limit: world.Alltoallv([x, placed], [y, placed], timeout=limit)),
):
    try:
        call(3 if near else None)
        found = "nothing" if not near else f"from {y[0]:.0f} and {y[-1]:.0f}"
    except collectives.CollectiveTimeout as e:
        found = str(e).splitlines()[0]
    print(f"rank {world.rank}: {name}: {found}\n", end="", flush=True)
