"""Calls that follow each other without a pause, for longer than their timeout and COLLECTIVES_STALL: none is reported.

Usage: without_pause.py SECONDS TICK: seconds for each kind of calls, and between two looks of the watchdog.
"""

import logging
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.waiting import watchdog

seconds, watchdog.TICK = map(float, sys.argv[1:])
watchdog.GRACE = 0.0
comm = collectives.Communicator(MPI.COMM_WORLD)
records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("collectives").addHandler(handler)
private, heap, go = np.zeros(1 << 17), comm.zeros(1 << 17), np.ones(1)
persistent = comm.Allreduce_init(MPI.IN_PLACE, private)


def start():
    persistent.Start()
    persistent.Wait()


CALLS = {
    "private": lambda: comm.Allreduce(MPI.IN_PLACE, private),
    "heap": lambda: comm.Allreduce(MPI.IN_PLACE, heap),
    "between processes": lambda: comm.Allreduce(MPI.IN_PLACE, private, algorithm="ring"),
    "by the slow path": lambda: comm.Allreduce(MPI.IN_PLACE, private, algorithm="ring", engine="python"),
    "non-blocking": lambda: comm.Iallreduce(MPI.IN_PLACE, private).Wait(),
    "non-blocking, between processes": lambda: comm.Iallreduce(MPI.IN_PLACE, private, algorithm="ring").Wait(),
    "persistent": start,
    "objects": lambda: comm.allgather(private),
    "MPI's": lambda: comm.Allreduce(MPI.IN_PLACE, private, algorithm="mpi"),
}
calls = wrong = 0
for timeout in (seconds / 3, None):  # shorter than the whole, longer than a call
    comm.timeout = timeout
    for kind, call in CALLS.items():
        go[0], end = 1, time.monotonic() + seconds / 2
        while go[0]:
            for _ in range(20):
                call()
                calls += 1
            go[0] = time.monotonic() < end
            comm.Bcast(go)
        wrong += len(records)
        for record in records:
            print(f"{kind}: {record.getMessage()}", flush=True)
        records.clear()
print(f"attack: {calls} trials, {wrong} wrong", flush=True)
