"""Calls that cannot end, one after the other, each on a communicator of its own; run by ../test_errors.py.

Writes what each rank raises to the file RESULTS, as JSON lines (launchers drop output of jobs that abort): case, rank,
seconds, name of the error, message. Cases are the arguments.
"""

import io
import json
import os
import signal
import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives
from collectives.diagnostics import peer_queries
from collectives.waiting import watching

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
a, b = np.ones(10), np.ones(10)
ABSENT = size - 1
SHORT = 0.25


def collective_differs(comm):
    if rank == 1:
        comm.Bcast(a)
    else:
        comm.Allreduce(a, b)


def op_differs(comm):
    comm.Allreduce(a, b, MPI.MAX if rank == 1 else MPI.SUM)


def count_differs(comm):
    comm.Allreduce(np.ones(10 + (rank == 1)), np.ones(10 + (rank == 1)), algorithm="ring")


def op_differs_between_processes(comm):
    comm.Allreduce(a, b, MPI.MAX if rank == 1 else MPI.SUM, algorithm="ring")


def type_differs_between_processes(comm):
    dtype = "i8" if rank == 1 else "f8"
    comm.Allreduce(np.ones(10, dtype), np.ones(10, dtype), algorithm="recursive_doubling")


def root_differs_between_processes(comm):
    comm.Bcast(a, 0 if rank == 1 else 1, algorithm="binomial")
    comm.Barrier(algorithm="dissemination")  # a root may be done with its part


def collective_differs_between_processes(comm):
    if rank == 1:
        comm.Allgather(a, np.ones(10 * size), algorithm="ring")
    else:
        comm.Allreduce(a, b, algorithm="ring")


def far_away(comm):
    """Ranks that are asked by messages."""
    op_differs_between_processes(comm)


def unequal_blocks_differ(comm):
    counts = [5] * size if rank != 1 else [5] * (size - 1) + [4]
    mine = counts[rank]
    comm.Allgatherv(np.ones(mine), [np.ones(sum(counts)), counts])


def say_where(name):
    """Tell the others that this rank is about to be where they shall find it."""
    with open(f"{os.environ['RESULTS']} {name}", "w"):
        pass


def absent(call):
    def case(comm):
        if rank == ABSENT:
            return say_where(comm.name)  # and wait for the others behind the case, however long they take
        while not os.path.exists(f"{os.environ['RESULTS']} {comm.name}"):
            time.sleep(0.001)
        call(comm)

    return case


def attribute(comm):
    comm.timeout = SHORT
    comm.Iallreduce(a, b).Wait()


def objects(comm):
    comm.timeout = SHORT
    comm.allgather({"rank": rank})


def grouped(comm):
    with comm.group():
        comm.Allreduce(a, b, timeout=SHORT)
        comm.Allreduce(a.copy(), b.copy(), timeout=SHORT)


def handed_over(comm):
    comm.timeout = SHORT
    comm.Iallreduce(a, b, algorithm="mpi").Wait()


def persistent(comm):
    comm.timeout = SHORT
    plans[comm.name].Start()
    plans[comm.name].Wait()


def dumped(comm):
    """SIGUSR2: the ranks say what they wait for, and go on."""
    if rank == ABSENT:
        MPI.COMM_WORLD.recv(source=0)
    elif rank == 0:
        threading.Thread(target=ask_once_it_waits).start()
    comm.Allreduce(a, b, algorithm="recursive_doubling")  # where it is dumped
    if rank == 0:
        os.kill(os.getpid(), signal.SIGUSR2)


def ask_once_it_waits():
    """Send the signal when this rank has been seen to wait, whatever the load; then let the absent rank come."""
    told = io.StringIO()
    while " s for rank " not in told.getvalue():
        time.sleep(SHORT / 5)
        collectives.dump(told)
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(4 * SHORT)  # for the report
    MPI.COMM_WORLD.send(None, ABSENT)


def death(comm):
    """One rank is killed while the others wait for it."""
    if rank == ABSENT:
        time.sleep(SHORT)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Allreduce(a, b)


def death_between_processes(comm):
    if rank == ABSENT:
        time.sleep(SHORT)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Allreduce(a, b, algorithm="ring")


CASES = {
    "collective_differs": collective_differs,
    "op_differs": op_differs,
    "count_differs": count_differs,
    "op_differs_between_processes": op_differs_between_processes,
    "type_differs_between_processes": type_differs_between_processes,
    "root_differs_between_processes": root_differs_between_processes,
    "collective_differs_between_processes": collective_differs_between_processes,
    "unequal_blocks_differ": unequal_blocks_differ,
    "far_away": far_away,
    "timeout_shm": absent(lambda comm: comm.Allreduce(a, b, timeout=SHORT)),
    "timeout_ring": absent(lambda comm: comm.Allreduce(a, b, timeout=SHORT, algorithm="ring")),
    "timeout_mpi": absent(lambda comm: comm.Allreduce(a, b, timeout=SHORT, algorithm="mpi")),
    "timeout_attribute": absent(attribute),
    "timeout_objects": absent(objects),
    "timeout_grouped": absent(grouped),
    "timeout_handed_over": absent(handed_over),
    "timeout_persistent": absent(persistent),
    "dumped": dumped,
    "death": death,
    "death_between_processes": death_between_processes,
}
plans = {}


def prepare(name):
    """The communicator of a case, made by all ranks together."""
    here = peer_queries.address
    if name == "far_away":
        peer_queries.address = lambda: None
    comm = collectives.Communicator(world)
    peer_queries.address = here
    comm.name = name
    if name == "timeout_persistent":
        plans[name] = comm.Allreduce_init(a, b)
    comm.Barrier()
    return comm


def attempt(name, comm):
    begin = time.monotonic()
    try:
        CASES[name](comm)
        raised, text = "", ""
    except collectives.CollectiveError as e:
        raised, text = type(e).__name__, str(e)
    line = json.dumps([name, rank, time.monotonic() - begin, raised, text])
    os.write(results, f"{line}\n".encode())


signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
results = os.open(os.environ["RESULTS"], os.O_WRONLY | os.O_APPEND)
watching.PATIENCE = 0.2, 1.0
comms = {name: prepare(name) for name in sys.argv[1:]}
for name, comm in comms.items():
    attempt(name, comm)
    if not name.startswith("death"):
        world.Barrier()  # the place where it is
time.sleep(0.2 if size < 8 else 2)  # who ends first aborts, and would keep the others from raising
