"""Waits and tests that MPI makes for requests of non-blocking collectives, while the progress thread hardly runs.

Each rank has one core, on which the thread gives way to all others.
"""

import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import collectives

CALLS = 100
comm = collectives.Communicator(MPI.COMM_WORLD)
x, y = np.ones((4, 100)), np.zeros((4, 100))


def begin():
    """Begin four calls."""
    return [comm.Iallreduce(x[i], y[i], algorithm="recursive_doubling") for i in range(4)]


def wait_for_any(requests):
    """Wait for one request after the other."""
    while MPI.Request.Waitany(requests) != MPI.UNDEFINED:
        pass


def wait_for_some(requests):
    """Wait for some requests at a time."""
    while MPI.Request.Waitsome(requests) is not None:
        pass


def test_all(requests):
    """Test the requests until all are complete."""
    while not MPI.Request.Testall(requests):
        pass


MPI.Request.Waitall(begin())
cores = sorted(os.sched_getaffinity(0))
for task in Path("/proc/self/task").iterdir():
    os.sched_setaffinity(int(task.name), {cores[comm.rank % len(cores)]})
    if (task / "comm").read_text().strip() == "collectives":
        os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))
for wait in (MPI.Request.Waitall, test_all, wait_for_any, wait_for_some):
    begun = time.monotonic()
    for _ in range(CALLS):
        wait(begin())
    assert (y == comm.size).all()
    if comm.rank == 0:
        print(wait.__name__, f"{time.monotonic() - begun:.3f} s", flush=True)
