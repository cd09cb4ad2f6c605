"""A call that comes while a communicator serves another, of a thread, a handler, a finalizer or an op: one sentence.

The call under way ends as if nothing had happened, and so does the next.
"""

import gc
import itertools
import os
import re
import signal
import sys
import threading

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
comm.timeout = 60
rank, size = comm.rank, comm.size
x, y = np.ones(10), np.empty(10)
objects = [np.ones(100_000), "text"]
trials, wrong = 0, []

UNDER_WAY = {
    "Allreduce": lambda: comm.Allreduce(np.ones(1), np.empty(1)),
    "Allreduce, ring": lambda: comm.Allreduce(np.ones(1), np.empty(1), algorithm="ring"),
    "Allreduce, mpi": lambda: comm.Allreduce(np.ones(1), np.empty(1), algorithm="mpi", timeout=60),
    "Allreduce, long": lambda: comm.Allreduce(np.ones(300_000), np.empty(300_000)),
    "Barrier": comm.Barrier,
    "allgather": lambda: comm.allgather(objects),
    "bcast": lambda: comm.bcast(objects if rank == size - 1 else None, size - 1),
}  # in which rank 0 waits for the last one
SECOND = {
    "Allreduce": lambda: comm.Allreduce(x, y),
    "Allreduce, ring": lambda: comm.Allreduce(x, y, algorithm="ring"),
    "Iallreduce": lambda: comm.Iallreduce(x, y),
    "Iallreduce, ring": lambda: comm.Iallreduce(x, y, algorithm="ring"),
    "Allreduce_init": lambda: comm.Allreduce_init(x, y),
    "allreduce": lambda: comm.allreduce(1),
    "bcast": lambda: comm.bcast("a"),
    "alltoall": lambda: comm.alltoall([1] * size),
    "Barrier": comm.Barrier,
    "Free": comm.Free,
}
BEGUN = 0.15  # seconds after which rank 0 is in its call for sure
world, token = MPI.COMM_WORLD, np.zeros(1, np.uint8)


def tell_last(problem):
    """Let the last rank enter the call in which rank 0 waits for it: the second call has been tried."""
    world.Send(token, size - 1)
    return problem


def sentence(second, who):
    """Nothing, if a second call says what it should; else what it did."""
    try:
        second()
    except collectives.CollectiveError as e:
        name = r"this thread" if who is None else rf"another thread \({who}\)"
        words = rf"rank {rank}: {name} is in [a-z_ ]+ on this communicator, at {re.escape(__file__)}:(\d+).*; "
        words += "a communicator takes one call at a time"
        found = re.match(words, str(e))
        with open(__file__) as file:
            line = file.read().splitlines()[int(found[1]) - 1] if found else ""
        return None if found and "under_way()" in line or "lambda: comm." in line else str(e)
    except BaseException as e:
        return repr(e)
    return "nothing was raised"


def note(what, problem):
    global trials
    trials += 1
    if problem:
        wrong.append(f"rank {rank}: {what}: {problem}")


def by_thread(under_way, second):
    problems = []
    thread = threading.Timer(BEGUN, lambda: problems.append(tell_last(sentence(second, "MainThread"))))
    thread.start()
    under_way()
    thread.join()
    return problems


def by_handler(under_way, second):
    problems = []
    signal.signal(signal.SIGALRM, lambda *_: problems.append(tell_last(sentence(second, None))))
    signal.setitimer(signal.ITIMER_REAL, BEGUN)
    under_way()
    return problems


quick = len(sys.argv) == 1
firsts, seconds = list(UNDER_WAY), list(SECOND)
pairs = list(itertools.product(firsts, seconds))
if quick:
    pairs = [(firsts[i % len(firsts)], second) for i, second in enumerate(seconds)]
for (first, second), how in itertools.product(pairs, (by_thread, by_handler)):
    if rank == 0:
        problems = how(UNDER_WAY[first], SECOND[second])
        note(f"{how.__name__}, {second} within {first}", problems[0] if problems else "it did not come")
    else:
        if rank == size - 1:
            world.Recv(token, 0)
        UNDER_WAY[first]()
    comm.Allreduce(x, y)
    note(f"after {second} within {first}", None if (y == size).all() else y)


# In a finalizer and an op


def op(a, b, _):
    problems.append(sentence(SECOND["Allreduce"], None))
    np.frombuffer(b, np.float64)[:] += np.frombuffer(a, np.float64)


class Dropped:
    def __del__(self):
        problems.append(sentence(SECOND["allreduce"], None))


def drop():
    cycle = Dropped()
    cycle.me = cycle
    del cycle
    gc.collect()


problems = []
mine = MPI.Op.Create(op, commute=False)
comm.Allreduce(np.ones(3), np.empty(3), mine)  # under_way()
for problem in problems:
    note("in an op", problem)
problems = []
if rank == 0:
    signal.signal(signal.SIGALRM, lambda *_: tell_last(drop()))
    signal.setitimer(signal.ITIMER_REAL, BEGUN)
    comm.Barrier()  # under_way()
    note("in a finalizer", problems[0] if problems else "it did not come")
else:
    if rank == size - 1:
        world.Recv(token, 0)
    comm.Barrier()

# What may go on beside a call: requests begun before, waited for in another thread or in a handler; other communicators
other = comm.Dup()
for wait in (lambda r: r.Wait(), lambda r: [None for _ in iter(r.Test, True)]):
    requests, plan = [comm.Iallreduce(x, np.empty(10)) for _ in range(3)], comm.Allreduce_init(x, y)
    plan.Start()
    threads = [threading.Thread(target=wait, args=(request,)) for request in [*requests, plan]]
    for thread in threads:
        thread.start()
    total = comm.allreduce(1)
    beside = threading.Thread(target=lambda: note("beside", None if other.allreduce(1) == size else "wrong"))
    beside.start()
    comm.Barrier()
    for thread in [*threads, beside]:
        thread.join()
    note("requests beside a call", None if total == size and (y == size).all() else (total, y))
    plan.Free()

print(*wrong, f"attack: {trials} trials, {len(wrong)} wrong", sep="\n", flush=True)
sys.stdout.flush()
if wrong:
    os._exit(1)
other.Free()
comm.Free()
