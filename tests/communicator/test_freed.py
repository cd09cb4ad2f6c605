"""Communicators that the program has freed through another handle: an error, where Open MPI would crash."""

from jobs import mpiexec

PROGRAM = """
import numpy as np
from mpi4py import MPI
import collectives

world = collectives.Communicator(MPI.COMM_WORLD)
x = np.zeros(1)
for name, use in {
    "new": collectives.Communicator,
    "in place": collectives.Communicator.in_place_of,
    "group": lambda comm: comm.group,
    "grouped": lambda comm: comm.group(),
    "Create": lambda comm: comm.Create(MPI.Group(world.group)),
    "Create_group": lambda comm: comm.Create_group(MPI.Group(world.group)),
    "Create_cart": lambda comm: comm.Create_cart([1]),
    "adjacent": lambda comm: comm.Create_dist_graph_adjacent([0], [0]),
    "dist_graph": lambda comm: comm.Create_dist_graph([0], [1], [0]),
    "Neighbor_allgather": lambda comm: comm.Neighbor_allgather(x, x),
    "scan": lambda comm: comm.scan(1),
    "exscan": lambda comm: comm.exscan(1),
    "ibcast": lambda comm: comm.ibcast(1),
    "igather": lambda comm: comm.igather(1),
    "iallgather": lambda comm: comm.iallgather(1),
    "iscatter": lambda comm: comm.iscatter([1]),
    "ialltoall": lambda comm: comm.ialltoall([1]),
    "ireduce": lambda comm: comm.ireduce(1),
    "iallreduce": lambda comm: comm.iallreduce(1),
    "iscan": lambda comm: comm.iscan(1),
    "iexscan": lambda comm: comm.iexscan(1),
}.items():
    comm = world.Create_cart([1], [True])
    MPI.Comm.fromhandle(comm.handle).Free()
    print(name, end=": ", flush=True)
    try:
        use(comm)
    except collectives.CollectiveError as e:
        print(e, flush=True)
"""


def test_every_call_says_so():
    done = mpiexec("openmpi", 1, "-c", PROGRAM, timeout=60)
    told = dict(line.split(": ") for line in done.stdout.splitlines())
    assert set(told.values()) == {"this communicator has been freed through another handle"}, done
    assert len(told) == 21
    assert done.returncode == 0, done.stderr
