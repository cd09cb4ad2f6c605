"""One collective again and again: `between_hosts.py COLLECTIVE (dies | waits)`.

The last rank dies, or all ranks wait for what the test does to a host. Each rank writes lines of JSON to the file
RESULTS: that it goes on (``ready``), when it died, or what it raised and when. Calls have TIMEOUT seconds.
"""

import functools
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

printed = Path(os.environ["RESULTS"]).with_name("printed")
os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), 2)  # the launcher loses the output of a host that is cut off
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
comm.timeout = float(os.environ["TIMEOUT"])
rank, size = comm.rank, comm.size
victim, n = size - 1, 1000
x, y = np.ones(n * size), np.empty(n * size)
plan = comm.Allreduce_init(x, y)


def persistent():
    plan.Start()
    plan.Wait()


def waited_by_mpi():
    """MPI's own wait, and what it says; then the library's word."""
    request = comm.Iallreduce(x, y)
    try:
        MPI.Request.Waitall([request])
    except MPI.Exception:
        request.Wait()
        raise


def made(make):
    """What is made, used and freed again and again."""
    new = make()
    new.Barrier()
    new.Free()


def planned():
    call = comm.Allreduce_init(x, y)
    call.Start()
    call.Wait()
    call.Free()


HIERARCHICAL = {"algorithm": "hierarchical"}
a, b = np.ones(5000), np.empty(5000)  # of longer messages to a dead process MPICH 5.0.2 dies itself, in MPI_Isend


@functools.cache
def lasting():
    return comm.Allreduce_init(a, b, **HIERARCHICAL)


def hierarchical():
    lasting().Start()
    lasting().Wait()


counts = [n // (1 + q) for q in range(size)]
total = [y[: sum(counts)], counts]
CALLS = {
    "allreduce": lambda: comm.Allreduce(x, y),
    "allreduce_by_mpi": lambda: comm.Allreduce(x, y, algorithm="mpi"),
    "iallreduce": lambda: comm.Iallreduce(x, y).Wait(),
    "waited_by_mpi": waited_by_mpi,
    "persistent": persistent,
    "barrier": comm.Barrier,
    "bcast": lambda: comm.Bcast(x, victim),
    "scatter": lambda: comm.Scatter(x, y[:n], victim),
    "reduce": lambda: comm.Reduce(x, y, root=0),
    "gather": lambda: comm.Gather(x[:n], y, 0),
    "allgather": lambda: comm.Allgather(x[:n], y),
    "alltoall": lambda: comm.Alltoall(x, y),
    "reduce_scatter_block": lambda: comm.Reduce_scatter_block(x, y[:n]),
    "scan": lambda: comm.Scan(x, y),
    "allgatherv": lambda: comm.Allgatherv(x[: counts[rank]], total),
    "alltoallv": lambda: comm.Alltoallv([x[: counts[rank] * size], [counts[rank]] * size], total),
    "reduce_scatter": lambda: comm.Reduce_scatter(x[: sum(counts)], y[: counts[rank]], counts),
    "dup": lambda: made(comm.Dup),
    "split": lambda: made(lambda: comm.Split(0, rank)),
    "init": planned,
    "objects": lambda: comm.allgather({"rank": rank}),
    "hierarchical_allreduce": lambda: comm.Allreduce(a, b, **HIERARCHICAL),
    "hierarchical_iallreduce": lambda: comm.Iallreduce(a, b, **HIERARCHICAL).Wait(),
    "hierarchical_lasting": hierarchical,
    "hierarchical_bcast": lambda: comm.Bcast(a, 0, **HIERARCHICAL),
    "hierarchical_reduce": lambda: comm.Reduce(a, b, root=0, **HIERARCHICAL),
    "hierarchical_barrier": lambda: comm.Barrier(**HIERARCHICAL),
    "hierarchical_allgather": lambda: comm.Allgather(x[:n], y, **HIERARCHICAL),
    "hierarchical_reduce_scatter_block": lambda: comm.Reduce_scatter_block(x, y[:n], **HIERARCHICAL),
    "hierarchical_gather": lambda: comm.Gather(x[:n], y, 0, **HIERARCHICAL),
    "hierarchical_scatter": lambda: comm.Scatter(x, y[:n], 0, **HIERARCHICAL),
    "hierarchical_alltoall": lambda: comm.Alltoall(x, y, **HIERARCHICAL),
}


def say(**words):
    os.write(results, (json.dumps({"rank": rank, **words}) + "\n").encode())


def die():
    say(died=time.monotonic())
    os.kill(os.getpid(), signal.SIGKILL)


results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)
call = CALLS[sys.argv[1]]
comm.Barrier()
say(ready=os.getpid())
if rank == victim and sys.argv[2] == "dies":
    threading.Timer(0.5, die).start()
try:
    while True:
        call()
        comm.Barrier()  # or ranks that take nothing from the others never wait
except (collectives.CollectiveError, MPI.Exception) as e:
    say(raised=type(e).__name__, text=str(e), time=time.monotonic())
# Who ends first may abort all, and others take it for dead.
end = time.monotonic() + 20
while Path(os.environ["RESULTS"]).read_text().count('"raised"') < size - (sys.argv[2] == "dies"):
    if time.monotonic() > end:
        break
    time.sleep(0.05)
