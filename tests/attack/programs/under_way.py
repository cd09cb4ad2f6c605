"""A call times out while non-blocking and persistent ones are under way: the buffers of all are the program's again.

The last rank is late. The others begin a non-blocking and a persistent call, then make a blocking one with a timeout.
After its error they write to all buffers. The late rank, which makes the calls then, must raise or get what the others
gave, and it must not change what they have written since.
"""

import itertools
import time

import numpy as np
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
LATE = SIZE - 1
LENGTHS = 1, 5000, 300_000
ALGORITHMS = "shm", "ring"
WRITTEN = -7.0  # what the program writes to its buffers after the error
wrong = []


def judge(good, *words):
    if not good:
        wrong.append(words)
        print("wrong:", RANK, *words, flush=True)


def make(comm, heap, n):
    """An input and an output for each of the three calls."""
    made = [comm.empty(n) if heap else np.empty(n) for _ in range(6)]
    for x, y in zip(made[::2], made[1::2], strict=True):
        x[:], y[:] = RANK + 1, 0
    return made


def attempt(calls):
    """What the calls raise, one after the other."""
    raised = []
    for call in calls:
        try:
            call()
            raised.append(None)
        except collectives.CollectiveError as e:
            raised.append(e)
    return raised


def trial(algorithm, n, heap):
    comm = collectives.Communicator(WORLD)
    a, b, c, d, e, f = buffers = make(comm, heap, n)
    plan = comm.Allreduce_init(c, d, algorithm=algorithm)
    requests = []
    comm.Barrier()
    WORLD.Barrier()
    if RANK == LATE:
        WORLD.Barrier()  # the others have written
    comm.timeout = 0.1 if RANK != LATE else 5
    raised = attempt([
        lambda: requests.append(comm.Iallreduce(a, b, algorithm=algorithm)),
        plan.Start,
        lambda: comm.Allreduce(e, f, algorithm=algorithm),
    ])  # fmt: skip
    waited = attempt([request.Wait for request in requests] + [plan.Wait])
    case = algorithm, n, "heap" if heap else "private"
    if RANK != LATE:
        judge(isinstance(raised[2], collectives.CollectiveTimeout), *case, "no timeout", raised)
        judge(all(waited), *case, "waited for in vain", waited)
        for buffer in buffers:
            buffer[:] = WRITTEN
        WORLD.Barrier()
        WORLD.Barrier()  # the late one is through
        time.sleep(0.05)
        judge(all((buffer == WRITTEN).all() for buffer in buffers), *case, "changed after the error")
    else:
        total = SIZE * (SIZE + 1) / 2
        for error, result in ((raised[0] or waited[0], b), (raised[1] or waited[-1], d), (raised[2], f)):
            judge(error is not None or (result == total).all(), *case, "took what was written later")
        judge(raised[2] is not None, *case, "went on unaware")
        WORLD.Barrier()
    WORLD.Barrier()


trials = 0
for algorithm, n, heap in itertools.product(ALGORITHMS, LENGTHS, (False, True)):
    trial(algorithm, n, heap)
    trials += 1
print(f"attack: {trials} trials, {len(wrong)} wrong", flush=True)
WORLD.Barrier()
time.sleep(0.5)  # some communicators are broken: the program ends by MPI_Abort
