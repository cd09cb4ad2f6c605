"""The report of what a process waits for."""

import re

from jobs import mpiexec

PROGRAM = """
import io
import numpy as np
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
begin = lambda: [comm.Iallreduce(np.ones(n), np.empty(n)) for n in (1, 2, 3)]
if comm.rank == 0:
    requests = begin()
    told = io.StringIO()
    collectives.dump(told)
    print(told.getvalue(), end="", flush=True)
    MPI.COMM_WORLD.Barrier()
else:
    MPI.COMM_WORLD.Barrier()
    requests = begin()
MPI.Request.Waitall(requests)
"""


def test_every_call_under_way_is_told():
    done = mpiexec("openmpi", 2, "-c", PROGRAM, timeout=60)
    assert done.returncode == 0, done.stderr
    for n, line in zip((1, 2, 3), done.stdout.splitlines(), strict=True):
        told = rf": call {n}, allreduce of {n} float64, SUM \(\w+\), non-blocking, under way, waits for "
        assert re.search(told, line), line
