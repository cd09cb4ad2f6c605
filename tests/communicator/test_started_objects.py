"""Non-blocking calls with objects that cannot end: the error comes in wait, and names the ranks waited for."""

import pytest
from jobs import mpiexec

LATE = """
import time
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
assert comm.iallreduce(1).wait() == 2
comm.timeout = 0.3
if comm.rank:
    request = comm.iallgather(1)
    try:
        request.wait()
    except collectives.CollectiveTimeout as e:
        print(e, flush=True)
    print(repr(comm), flush=True)
time.sleep(0.6)
"""
DEAD = """
import os
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
assert comm.iallreduce(1).wait() == 2
if comm.rank:
    os.kill(os.getpid(), 9)
try:
    comm.iallgather(1).wait()
except collectives.PeerFailure as e:
    print(e, flush=True)
"""


def test_a_late_rank_is_a_timeout():
    done = mpiexec("openmpi", 2, "-c", LATE, timeout=60)
    assert "rank 0" in done.stdout, done
    assert "not complete after 0.3" in done.stdout or "0.3 s" in done.stdout, done
    assert "rank 1 of 2 on 1 host, engine: shared memory>" in done.stdout, done


@pytest.mark.slow
def test_a_dead_rank_is_found():
    done = mpiexec("openmpi", 2, "-c", DEAD, timeout=60, flags=["--with-ft", "ulfm"])
    assert "rank 1" in done.stdout, done
