"""Mixed collectives until ranks are killed or stopped from outside: `kills.py SEED VICTIMS [KIND | waits]`.

"waits": no request is only tested, to which no timeout applies.

Each rank writes lines of JSON to the file RESULTS: its process, and later what it raised and when.
"""

import json
import os
import random
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

LONGEST = 1 << 21  # elements of 8 bytes
KINDS, TESTED = range(13), (2, 9)  # of calls; those that are only tested
LAST = 25  # seconds after which a rank stops by itself

world = MPI.COMM_WORLD
choices = random.Random(int(sys.argv[1]))  # the same on all ranks
comm = collectives.Communicator(world)
comm = comm.Dup() if choices.randrange(2) else comm
rank, size = comm.rank, comm.size
survivors = size - int(sys.argv[2])
memories = np.ones(LONGEST), comm.full(LONGEST, 1.0)
spare = np.ones(LONGEST)
chosen = sys.argv[3] if len(sys.argv) > 3 else ""
kinds = [int(chosen)] if chosen.isdigit() else [kind for kind in KINDS if not chosen or kind not in TESTED]
plans = [comm.Allreduce_init(MPI.IN_PLACE, np.ones(n), MPI.MAX) for n in (1, 50_000)]


def say(**words):
    os.write(results, (json.dumps({"rank": rank, **words}) + "\n").encode())


def until_done(request):
    while not request.Test():
        time.sleep(0)


def objects(c, root):
    what = choices.randrange(4)
    if what == 0:
        c.bcast({"x": spare[:5000]} if rank == root else None, root)
    elif what == 1:
        c.allgather((rank, spare[: choices.choice((0, 5000))]))
    elif what == 2:
        c.allreduce(rank)
    else:
        c.scatter(list(range(size)) if rank == root else None, root)


def in_blocks(c, memory, n, root):
    """Collectives of a block for each rank."""
    n = min(n, LONGEST // size // 2)
    what = choices.randrange(5)
    if what == 0:
        c.Alltoall(memory[: n * size], np.empty(n * size))
    elif what == 1:
        c.Allgather(memory[:n], np.empty(n * size))
    elif what == 2:
        c.Gather(memory[:n], np.empty(n * size) if rank == root else None, root)
    elif what == 3:
        c.Scatter(memory[: n * size] if rank == root else None, np.empty(n), root)
    else:
        c.Reduce_scatter_block(memory[: n * size], np.empty(n))


def in_unequal_blocks(c, memory, n, root):
    """Collectives of a block of its own length for each rank."""
    counts = [n // size // 2 * (q % 2) + q for q in range(size)]
    mine, all_, total = counts[rank], [memory[: sum(counts)], counts], [np.empty(sum(counts)), counts]
    same = [memory[: mine * size], [mine] * size], [np.empty(sum(counts)), counts]
    what = choices.randrange(7)
    if what == 0:
        c.Allgatherv(memory[:mine], total)
    elif what == 1:
        c.Gatherv(memory[:mine], total if rank == root else None, root)
    elif what == 2:
        c.Scatterv(all_ if rank == root else None, np.empty(mine), root)
    elif what == 3:
        c.Alltoallv(*same)
    elif what == 4:
        c.Reduce_scatter(memory[: sum(counts)], np.empty(mine), counts)
    elif what == 5:
        c.Iallgatherv(memory[:mine], total).Wait()
    else:
        c.Ialltoallv(*same).Wait()


def made(c, v, root):
    """Communicators and persistent calls that are made, used and freed."""
    what = choices.randrange(6)
    if what < 3:
        new = (c.Dup, lambda: c.Split(rank % 2, rank), lambda: c.Create(c.group))[what]()
        new.Barrier()
        new.Free()
        return
    call = (
        lambda: c.Allreduce_init(MPI.IN_PLACE, v, MPI.MAX),
        lambda: c.Bcast_init(v, root),
        lambda: c.Barrier_init(),
    )[what - 3]()  # fmt: skip
    call.Start()
    call.Wait()
    call.Free()


def one_call(c):
    """A collective of any kind, or none for a moment."""
    n = choices.choice((1, 1, 10, 1000, 30_000, 1 << 18, LONGEST))
    memory, root = choices.choice(memories), choices.randrange(size)
    v = memory[:n]
    algorithm = choices.choice((None, None, "ring", "recursive_doubling", "mpi"))
    kind = choices.choice(kinds)
    if kind == 0:
        c.Allreduce(MPI.IN_PLACE, v, MPI.MAX, algorithm=algorithm)
    elif kind == 1:
        c.Iallreduce(MPI.IN_PLACE, v, MPI.MAX, algorithm=algorithm).Wait()
    elif kind == 2:
        until_done(c.Ibcast(v, root))
    elif kind == 3:
        objects(c, root)
    elif kind == 4:
        c.Barrier(algorithm=choices.choice((None, "dissemination", "mpi")))
    elif kind == 5:
        in_blocks(c, memory, n, root)
    elif kind == 6:
        c.Reduce(v, spare[:n] if rank == root else None, MPI.MAX, root)
    elif kind == 7:
        plan = choices.choice(plans)
        plan.Start()
        plan.Wait()
    elif kind == 8:
        c.Bcast(v, root, algorithm=choices.choice((None, "binomial")))
    elif kind == 9:
        until_done(c.Iallreduce(MPI.IN_PLACE, v, MPI.MAX, algorithm=algorithm))
    elif kind == 11:
        in_unequal_blocks(c, memory, n, root)
    elif kind == 12:
        made(c, v, root)
    else:
        time.sleep(choices.random() * 0.02)


def let_others_raise():
    """Who ends first aborts all."""
    end = time.monotonic() + 6
    while time.monotonic() < end:
        with open(os.environ["RESULTS"]) as file:
            if sum("raised" in json.loads(line) for line in file if line.endswith("\n")) >= survivors:
                return
        time.sleep(0.05)


signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)
world.Barrier()
say(pid=os.getpid())
end = time.monotonic() + LAST
try:
    while time.monotonic() < end:
        one_call(comm)
except (collectives.CollectiveError, MPI.Exception) as e:
    say(raised=type(e).__name__, text=str(e), time=time.monotonic())
    let_others_raise()
