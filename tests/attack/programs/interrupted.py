"""A signal's handler raises in a call: the others are told, or the call is complete.

interrupted.py WHERE [KIND]: "finish", "wait", "limit" or "end_walk", where it raises at the begin of that function; or
"anywhere".
KIND is the kind of the call, "blocking" if none is named. "mismatch": the ranks' calls differ in length, and on all of
them the handler raises, when the call has ended with an error that nothing has recorded yet.
"""

import random
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.communicator.internal import side_of
from collectives.core import _core

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
where, kind = sys.argv[1], (sys.argv[2:] or ["blocking"])[0]
differ = kind == "mismatch"
TRIALS = 12 if where == "anywhere" else 3


class Interruption(Exception):
    pass


def interrupt(number, frame):
    raise Interruption


def trace(frame, event, argument):
    """As if the signal had come when that function is entered."""
    if event == "call" and frame.f_code.co_name == where:
        sys.setprofile(None)
        raise Interruption


def start(plan):
    plan.Start()
    plan.Wait()


def limit(options):
    """The timeout of a call on memory, which is asked for if the call is not over at once."""
    return 20.0


def on_memory(comm, x, y):
    kind, codes = _core.kind_number("allreduce"), (_core.DTYPES.index("float64"), _core.OPS.index("sum"))
    where = x.ctypes.data, y.ctypes.data, x.size
    if not _core.run_memory(side_of(comm), (x, y), limit, None, kind, *where, *codes):
        comm.Allreduce(x, y)  # which says why it cannot


def prepare(comm, x, y):
    """The call, as a function, and a function whose result changes when it begins."""
    plan = comm.Allreduce_init(x, y) if kind == "persistent" else None
    made = {
        "blocking": lambda: comm.Allreduce(x, y),
        "mismatch": lambda: comm.Allreduce(x[rank:], y[rank:]),
        "ring": lambda: comm.Allreduce(x, y, algorithm="ring"),
        "nonblocking": lambda: comm.Iallreduce(x, y).Wait(),
        "nonblocking ring": lambda: comm.Iallreduce(x, y, algorithm="ring").Wait(),
        "persistent": lambda: start(plan),
        "memory": lambda: on_memory(comm, x, y),
        "objects": lambda: np.copyto(y, comm.allreduce(x)),
        "python": lambda: comm.Allreduce(x, y, algorithm="ring", engine="python"),
    }[kind]
    return made, (lambda: comm._context.begun) if plan is None else lambda: plan._operation.begin


def call(made, y, begun):
    """What this rank's call raises, by name, and whether its result is right.

    ``begun()`` changes when a call begins. A call that the signal came before, on a busy core, is made again.
    """
    before = begun()
    try:
        if rank == 0 and where == "anywhere":
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 2e-3))
        elif rank == 0 or differ:
            sys.setprofile(trace)
        made()
    except (Interruption, collectives.CollectiveError) as e:
        again = isinstance(e, Interruption) and begun() == before
        return call(made, y, begun) if again else type(e).__name__
    finally:
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "" if (y == size * (size + 1) / 2).all() else "a wrong result"


def trial():
    comm = collectives.Communicator(world)
    comm.timeout = 20  # nobody is to need it
    x, y = np.full(300_000, rank + 1.0), np.zeros(300_000)
    made, begun = prepare(comm, x, y)
    if not differ:
        made()
    y[:] = 0
    world.Barrier()
    if rank != 0 and not differ:
        time.sleep(0.002 if where == "anywhere" else 0.2)
    begin = time.monotonic()
    said = call(made, y, begun)
    took = time.monotonic() - begin
    everybody = world.allgather((said, took))
    try:
        comm.Barrier()
        after = ""
    except collectives.CollectiveError as e:
        after = type(e).__name__
    return everybody, world.allgather(after)


def judge(everybody, after):
    said = [one for one, _ in everybody]
    if max(took for _, took in everybody) > 5 or "a wrong result" in said or "CollectiveTimeout" in said + after:
        return f"{everybody}, then {after}"
    told = all(one == "CollectiveError" for one in said[1:])
    if any(said[1:] + after) and not all(after):
        return f"some are told, others are never: {said}, then {after}"
    if where != "anywhere" and not differ and not (said[0] == "Interruption" and told):
        return f"not told: {said}"
    return ""


def main():
    signal.signal(signal.SIGALRM, interrupt)
    random.seed(rank)
    wrong = 0
    for _ in range(TRIALS):
        found = judge(*trial())
        wrong += bool(found)
        if found and rank == 0:
            print(found, flush=True)
    if rank == 0:
        print(f"attack: {TRIALS} trials, {wrong} wrong", flush=True)
    world.Barrier()


main()
