"""One rank does not come: whoever waits names that rank, and not those that wait for it, too.

Usage: missing.py few|all. Each case has a communicator of its own. The number of a case says which rank is missing.
"""

import re
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.schedules import registry

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
SECONDS = 0.2
BLOCK = 4096


def cases(everything):
    """A name and a call for each collective that everybody waits in, on the node and between processes."""
    whole, one = np.ones(BLOCK * size), np.ones(BLOCK)
    for name, arguments in {
        "Reduce_scatter_block": (whole, one.copy()),
        "Allreduce": (whole, whole.copy()),
        "Allgather": (one, whole.copy()),
        "Alltoall": (whole, whole.copy()),
        "Barrier": (),
    }.items():
        every = registry.algorithms(name.removesuffix("_block").lower())
        found = [algorithm for algorithm in every if algorithm != "hierarchical"]
        for algorithm in found if everything else found[-1:]:
            yield f"{name}, {algorithm}", name, arguments, {"algorithm": algorithm, "timeout": SECONDS}
    python = {"engine": "python", "algorithm": "ring"}  # which has the communicator's timeout
    yield "Allreduce, ring, by the readable executor", "Allreduce", (whole, whole.copy()), python


def named(call, arguments, options):
    """The ranks that an error says are waited for, and the error."""
    try:
        call(*arguments, **options)
    except collectives.CollectiveError as error:
        found = re.search(r"waiting for rank (\d+(?:, \d+)*)", str(error))
        return found and found[1], error
    return None, "no error"


everything = sys.argv[1] == "all"
trials = wrong = 0
for what, name, arguments, options in cases(everything):
    missing = size - 1 - trials % size
    comm = collectives.Communicator(world)
    comm.Barrier()
    comm.timeout = SECONDS
    if rank == missing:
        world.recv(source=MPI.ANY_SOURCE, tag=7)  # when the first one gives up, others still wait
        time.sleep(3 * SECONDS)
        for _ in range(size - 2):
            world.recv(source=MPI.ANY_SOURCE, tag=7)
    else:
        try:
            told, error = named(getattr(comm, name), arguments, options)
        except ValueError:  # not for this number of ranks
            told = str(missing)
        if told != str(missing):
            wrong += 1
            print(f"rank {rank}: {what}, without rank {missing}: {error}", flush=True)
        world.send(None, missing, 7)
    trials += 1
    world.Barrier()
print(f"attack: {trials} trials, {wrong} wrong", flush=True)
world.Barrier()
time.sleep(0.5)  # the communicators are broken: who ends first ends all, by MPI_Abort
