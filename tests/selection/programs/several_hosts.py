"""Collectives of ranks that take themselves for those of several hosts: argument 1 names the host of each rank.

Results are right for lengths around the limits of the defaults, and sums have the same bits on all ranks. All ranks
know the same link between the hosts, which communicators made from this one do not measure again.
"""

import sys

import numpy as np
from mpi4py import MPI

import collectives
from collectives.bench.workloads import Workload
from collectives.cli import info
from collectives.runtime import links
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
for name in ("allgather", "allgatherv", "reduce_scatter", "reduce_scatter_block", "bcast", "reduce", "alltoall"):
    for count in (12, 12_000, 120_000):
        for form in ("call", "start", "plan"):
            root = range(comm.size) if name in ("bcast", "reduce") else 0
            wrong = Workload(comm, name, count, root=root).validate(form)
            assert wrong is None, (name, count, form, wrong)

link = links.known()
assert link.alpha > 0 < link.beta
assert len(set(WORLD.allgather(link))) == 1
told = f"{1e6 * link.alpha:.0f} us, {8e-6 / link.beta:.0f} Mbit/s"
assert told in comm.explain("bcast", 4 << 20)
del links.measured  # from here on an error
half = comm.Split(WORLD.rank % 2)
assert half.allreduce(1) == half.size
assert links.known() == link
found = info.gather()["hosts"]
assert found["number"] == len(set(sys.argv[1].split(",")))
assert found["rate_mbit_per_s"] == round(8e-6 / link.beta, 1)
if WORLD.rank == 0:
    print(comm.explain("allreduce", 4 << 20), comm.explain("reduce_scatter_block", 4 << 20), sep="\n")
print(f"right on rank {WORLD.rank}", flush=True)
