"""Several threads wait on one communicator: each wait is told by its own call and line, also once another has ended."""

import io
import signal
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
rank, size = comm.rank, comm.size
wrong = []
PATIENCE = 20  # seconds


def told():
    file = io.StringIO()
    collectives.dump(file)
    return file.getvalue().splitlines()


def line_of(words):
    with open(__file__) as file:
        lines = file.read().splitlines()
    return f"{__file__}:{next(i for i, line in enumerate(lines, 1) if line.endswith('# ' + words))}"


def expect(what, pairs):
    """Each of these calls is told at its line, and nothing else is, as soon as busy cores let the threads wait."""
    end = time.monotonic() + PATIENCE
    while found := differs(what, pairs):
        if time.monotonic() > end:
            wrong.extend(found)
            return
        time.sleep(0.05)


def differs(what, pairs):
    lines = told()
    found = [
        (what, call, place, lines)
        for call, place in pairs
        if sum(call in line and f"at {line_of(place)}, waits" in line for line in lines) != 1
    ]
    return found + [(what, "others, too", lines)] * (len(lines) != len(pairs))


def first(request):
    request.Wait()  # the first


def second(request):
    request.Wait()  # the second


def third(request):
    request.Wait()  # the third


def in_handler(*_):
    inner.Wait()  # in a handler


def look():
    """Note what is told while the handler waits, and after that; the other rank goes on each time."""
    handler = f"{line_of('in a handler')}, waits"
    while handler not in "".join(told()):
        time.sleep(0.05)
    found.extend(told())
    MPI.COMM_WORLD.Barrier()
    while handler in "".join(told()):
        time.sleep(0.05)
    found.append("then")
    found.extend(told())
    MPI.COMM_WORLD.Barrier()


persistent = comm.Allreduce_init(np.ones(30), np.empty(30))
requests = [comm.Iallreduce(np.ones(10 * n), np.empty(10 * n)) for n in (1, 2)] if rank == 0 else []
if rank == 0:
    persistent.Start()
    waits = zip((first, second, third), [*requests, persistent], strict=True)
    threads = [threading.Thread(target=f, args=(request,)) for f, request in waits]
    for thread in reversed(threads):  # the last to wait is for the oldest call
        thread.start()
        time.sleep(0.05)
    pairs = [("call 2, ", "the first"), ("call 3, ", "the second"), ("a persistent call", "the third")]
    expect("all wait", pairs)
    MPI.COMM_WORLD.Barrier()
    threads[0].join()
    threads[1].join()
    expect("one still does", pairs[2:])
    MPI.COMM_WORLD.Barrier()
    threads[2].join()
else:
    MPI.COMM_WORLD.Barrier()
    for n in (1, 2):
        comm.Iallreduce(np.ones(10 * n), np.empty(10 * n)).Wait()
    MPI.COMM_WORLD.Barrier()
    persistent.Start()
    persistent.Wait()

# A wait within a wait
outer = comm.Iallreduce(np.ones(1), np.empty(1)) if rank == 0 else None
if rank == 0:
    inner = persistent
    inner.Start()
    signal.signal(signal.SIGALRM, in_handler)
    found = []
    looking = threading.Thread(target=look)
    looking.start()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    outer.Wait()  # the outer
    looking.join()
    text = "\n".join(found)
    before, _, after = text.partition("then")
    for part, place, expected in (
        (before, "in a handler", 1), (after, "in a handler", 0), (before, "call 4, ", 1), (after, "call 4, ", 1),
    ):  # fmt: skip
        words = place if place.startswith("call") else line_of(place) + ", waits"
        if (words in part) != bool(expected):
            wrong.append(("within", words, part))
else:
    MPI.COMM_WORLD.Barrier()
    persistent.Start()
    persistent.Wait()
    MPI.COMM_WORLD.Barrier()
    comm.Allreduce(np.ones(1), np.empty(1))

comm.Free()
if rank == 0:
    print(*wrong, f"attack: 10 trials, {len(wrong)} wrong", sep="\n", flush=True)
