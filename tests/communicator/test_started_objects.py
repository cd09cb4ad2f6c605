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


TORN = """
import os
import sys
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
comm.timeout = 40
try:
    comm.iallreduce(1, lambda a, b: sys.exit(3)).wait()
except (SystemExit, collectives.CollectiveError) as e:
    print(comm.rank, type(e).__name__, flush=True)
comm.Barrier()
print("goes on", flush=True)
MPI.COMM_WORLD.Barrier()
os._exit(0)
"""
HANDLED = """
import signal
import time
from mpi4py import MPI
import collectives

def handler(*_):
    try:
        print(request.test(), flush=True)
        request.wait()
    except RuntimeError as e:
        print(e, flush=True)

comm = collectives.Communicator(MPI.COMM_WORLD)
request = comm.ireduce(1, lambda a, b: (time.sleep(1), a + b)[1])
if comm.rank == 0:
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
print(request.wait(), request.test(), flush=True)
"""


def test_an_exception_between_lengths_and_bytes_is_told():
    """The op leaves rank 0's thread by SystemExit; rank 1, which waits for the result, learns of it."""
    done = mpiexec("openmpi", 2, "-c", TORN, timeout=30)
    assert "0 SystemExit" in done.stdout, done
    assert "1 CollectiveError" in done.stdout, done
    assert done.stdout.count("goes on") == 2, done


def test_a_signal_handler_that_looks_at_the_request_whose_result_is_being_made():
    done = mpiexec("openmpi", 2, "-c", HANDLED, timeout=30)
    assert done.returncode == 0, done
    assert "(False, None)" in done.stdout, done
    assert "wait: this thread is making the result of this very call" in done.stdout, done
    assert "2 (True, 2)" in done.stdout, done


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
