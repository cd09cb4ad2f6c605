"""Waits without a timeout, longer than COLLECTIVES_STALL: who waits says so once, through logging, and goes on.

Usage: stalls.py LINES [CALLS], where LINES is how many each rank that waits has to log for a call: 1, or 0; CALLS says
how many kinds of calls are tried.
"""

import logging
import re
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.diagnostics import peer_queries

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
expected, *most = map(int, sys.argv[1:])
records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("collectives").addHandler(handler)
a, b = np.ones(1000), np.ones(1000)


def far_away():
    """A communicator whose ranks ask each other by messages, as on different machines; silent ones have a second."""
    here, peer_queries.address = peer_queries.address, lambda: None
    made = collectives.Communicator(world)
    peer_queries.address = here
    return made


comm, far = collectives.Communicator(world), far_away()
persistent = comm.Allreduce_init(a, b)
CALLS = {
    "on the node": (comm, lambda: comm.Allreduce(a, b)),
    "far away": (far, lambda: far.Allreduce(a, b, algorithm="ring")),
    "non-blocking": (comm, lambda: comm.Iallreduce(a, b).Wait()),
    "between processes": (comm, lambda: comm.Allreduce(a, b, algorithm="ring")),
    "persistent": (comm, lambda: (persistent.Start(), persistent.Wait())),
    "objects": (comm, lambda: comm.allgather("x")),
    "readable": (comm, lambda: comm.Allreduce(a, b, algorithm="ring", engine="python")),
    "with a timeout": (comm, lambda: comm.Allreduce(a, b, timeout=60)),
}


def is_right(record, what):
    """Whether a report says who waits, for whom, and where the one that is missing is."""
    place = f"{__file__}:{SLEEPS}"
    missing = "does not answer" if what == "far away" else f"in no collective of this communicator, .*, at {place}$"
    text = record.getMessage()
    first = rf"^all\w+ \(.*\) on rank {rank} of {size}: not complete after [\d.]+ s; waiting for rank {size - 1}$"
    second = rf"^  rank {rank}: (call \d+|a persistent call), .*, at {__file__}:\d+$"
    return (record.levelno, record.name) == (logging.WARNING, "collectives") and all(
        re.search(pattern, text, re.MULTILINE) for pattern in (first, second, rf"^  rank {size - 1}: .*{missing}")
    )


with open(__file__) as file:
    SLEEPS = next(i for i, line in enumerate(file, 1) if line.endswith("# where it is\n"))
wrong = 0
tried = list(CALLS.items())[: most[0] if most else None]
for what, (of, call) in tried:
    of.Barrier()
    records.clear()
    if rank == size - 1:
        for _ in range(size - 1):
            world.recv()
        time.sleep(2.5 if of is far else 1.2)  # where it is
    else:
        world.send("about to call", size - 1)
    call()
    lines = 0 if rank == size - 1 or what == "with a timeout" else expected
    if len(records) != lines or not all(is_right(record, what) for record in records):
        wrong += 1
        print(f"rank {rank}, {what}: {[record.getMessage() for record in records]}", flush=True)
print(f"attack: {len(tried)} trials, {wrong} wrong", flush=True)
