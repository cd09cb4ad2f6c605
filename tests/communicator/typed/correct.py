"""Calls that are correct: neither mypy nor pyright has an objection. Read by tests/communicator/test_types.py."""

from typing import Any

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
x, y = np.ones(8), np.empty(8)

# Buffers, ops and options
comm.Allreduce(x, y)
comm.Allreduce(x, y, MPI.MAX, algorithm="ring", deterministic=True, timeout=2.5)
comm.Allreduce(MPI.IN_PLACE, y, op=collectives.AVG, engine="python")
comm.Allreduce([x, MPI.DOUBLE], [y, 8, MPI.DOUBLE], collectives.REPRODUCIBLE_SUM, stream=None)
comm.Allreduce(np.ones(8, np.float16), bytearray(16))
comm.Reduce(x, y if comm.rank == 0 else None, root=0)
comm.Bcast(x, root=0, algorithm="binomial", timeout=None)
comm.Gather(x, None, 0)
comm.Gatherv(x, [y, [4, 4]], root=1)
comm.Scatterv([x, ([4, 4], [0, 4]), MPI.DOUBLE], y)
comm.Allgatherv(x, [y, [4, 4]])
comm.Alltoallv([x, [4, 4]], [y, [4, 4]])
comm.Reduce_scatter(x, y, [4, 4], MPI.SUM)
comm.Scan(x, y, collectives.REPRODUCIBLE_SUM)
comm.Barrier(timeout=1)
request: MPI.Request = comm.Iallreduce(x, y, deterministic=True)
request.Wait()
plan: MPI.Prequest = comm.Allreduce_init(x, y, MPI.SUM, MPI.INFO_NULL, algorithm="ring")
plan.Start()
MPI.Request.Waitall([request, comm.Ibarrier()])

# Objects
found: Any = comm.bcast({"a": 1}, root=0)
gathered: "list[Any] | None" = comm.gather(1)
everything: list[Any] = comm.allgather(1)
largest = comm.allreduce(3, op=MPI.MAX)
joined = comm.reduce("a", lambda a, b: a + b, root=0)
started = comm.iallreduce(3, MPI.MAX)
both: list[Any] = started.waitall([started, comm.ibcast(1)])
done, value = comm.ialltoall([1, 2]).test()

# Communicators, arrays, inquiries
half: collectives.Communicator = comm.Split(comm.rank % 2, comm.rank)
half.Allreduce(x, y, algorithm="ring")
comm.Dup().Bcast(x, timeout=1.0)
grid = comm.Create_cart([2, 2], periods=[True, False])
grid.Allreduce(x, y, timeout=1.0)
rows = grid.Sub([True, False])
rows.Neighbor_allgather(x, y)
shared: np.ndarray = comm.share(comm.empty((2, 3), np.float32))
why: str = comm.explain("allreduce", 1 << 20, dtype="float32", op=MPI.SUM)
if comm.last is not None:
    name: str = comm.last.algorithm
comm.timeout = 3.0
comm.Send(x, dest=0)
with collectives.share_arrays():
    z = np.zeros(1 << 20)
names: "dict[str, Any] | list[str]" = list(collectives.algorithms("allreduce"))
