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
INTERRUPTED = """
import signal
import time
from mpi4py import MPI
import collectives

class Stop(Exception):
    pass

def handler(*_):
    raise Stop

comm = collectives.Communicator(MPI.COMM_WORLD)
comm.timeout = 10
assert comm.ibcast("x").wait() == "x"
signal.signal(signal.SIGALRM, handler)
if comm.rank:
    time.sleep(0.6)
request = comm.iallgather(comm.rank)
if comm.rank == 0:
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        comm.Free()
    except Stop:
        print("interrupted", flush=True)
requests = request, comm.iallreduce(1), comm.ibcast("y")
print([request.wait() for request in requests], flush=True)
comm.Free()
"""


def test_an_interrupted_free_can_be_repeated():
    """The calls before it and those after it are made in their order."""
    done = mpiexec("openmpi", 2, "-c", INTERRUPTED, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[[0, 1], 2, 'y']"] * 2 + ["interrupted"], done


def test_a_late_rank_is_a_timeout():
    done = mpiexec("openmpi", 2, "-c", LATE, timeout=60)
    assert "rank 0" in done.stdout, done
    assert "not complete after 0.3" in done.stdout or "0.3 s" in done.stdout, done
    assert "rank 1 of 2 on 1 host, engine: shared memory>" in done.stdout, done


@pytest.mark.slow
def test_a_dead_rank_is_found():
    done = mpiexec("openmpi", 2, "-c", DEAD, timeout=60, flags=["--with-ft", "ulfm"])
    assert "rank 1" in done.stdout, done
