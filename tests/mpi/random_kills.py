"""Mixed collectives until a rank is killed from outside; run by tests/test_kills.py. The argument is a seed.

Each rank first tells the file RESULTS its process number, later which error it raised.
"""

import os
import random
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
other = collectives.Communicator(world)
rank, size = comm.rank, comm.size
choices = random.Random(int(sys.argv[1]))  # the same on all ranks
private = np.ones(1 << 19)
shared = comm.zeros(1 << 19)


def say(*words):
    os.write(results, (f"rank {rank} " + " ".join(map(str, words)) + "\n").encode())


def one_call():
    """A collective of any kind."""
    c = choices.choice((comm, other))
    n = choices.choice((1, 10, 1000, 30_000, 1 << 18))
    memory = choices.choice((private, shared))
    v, root = memory[:n], choices.randrange(size)
    algorithm = choices.choice((None, None, "ring", "recursive_doubling"))
    kind = choices.randrange(9)
    if kind == 0:
        c.Allreduce(MPI.IN_PLACE, v, MPI.MAX, algorithm=algorithm)
    elif kind == 1:
        c.Iallreduce(MPI.IN_PLACE, v, MPI.MAX).Wait()
    elif kind == 2:
        c.Bcast(v, root, algorithm=choices.choice((None, "binomial")))
    elif kind == 3:
        c.allgather({"rank": rank, "x": v[: min(n, 5000)]})
    elif kind == 4:
        c.Barrier(algorithm=choices.choice((None, "dissemination")))
    elif kind == 5:
        c.Alltoall(np.ones(n // 10 * size), np.ones(n // 10 * size))
    elif kind == 6:
        c.Reduce(v.copy(), memory[-n:] if rank == root else None, root=root)
    elif kind == 7:
        c.Allreduce(MPI.IN_PLACE, v[:100], MPI.MAX, algorithm="mpi")
    else:
        time.sleep(choices.random() * 0.003)


signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)
world.Barrier()
say("is", os.getpid())
end = time.monotonic() + 20
try:
    while time.monotonic() < end:
        one_call()
except collectives.CollectiveError as e:
    say("raised", type(e).__name__, str(e).partition("\n")[0])
except MPI.Exception as e:
    say("raised", "MPI.Exception", str(e).partition("\n")[0])
