"""Ranks that come to share one core after they have counted their cores: sharing.py ALGORITHM.

A process computes on that core for a while. Then the ranks have it to themselves, and calls must be short again.
"""

import os
import statistics
import subprocess
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

COMPUTES, CALLS, LONGEST = 1.0, 400, 1e-3  # seconds, calls, seconds of the median call
comm = collectives.Communicator(MPI.COMM_WORLD)
x, y = np.ones(16), np.empty(16)


def call():
    """Seconds of one call."""
    begin = time.perf_counter()
    comm.Allreduce(x, y, algorithm=sys.argv[1])
    return time.perf_counter() - begin


os.sched_setaffinity(0, {comm.bcast(min(os.sched_getaffinity(0)))})
other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if comm.rank == 0 else None
end = time.monotonic() + COMPUTES
while comm.bcast(time.monotonic() < end):
    call()
if other is not None:
    other.kill()
    other.wait()
for _ in range(CALLS):
    call()
median = statistics.median(call() for _ in range(CALLS))
if median > LONGEST:
    print(f"rank {comm.rank}: the median call takes {1e3 * median:.1f} ms")
print(f"attack: {CALLS} trials, {int(median > LONGEST) * CALLS} wrong", flush=True)
