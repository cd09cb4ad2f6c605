"""Programs that end well, though not together: nothing may be printed, nor any rank be disturbed."""

import sys
import threading
import time

import numpy as np
from mpi4py import MPI

import collectives

(how,) = sys.argv[1:]
world = MPI.COMM_WORLD
comm = collectives.Communicator(world)
first = comm.rank == 0
a, b = np.ones(1000), np.zeros(1000)


def at_different_times():
    comm.Allreduce(a, b)
    if first:
        time.sleep(1.5)


def while_others_send():
    """Ranks exchange messages when one of them has left, on the library's communicator and on MPI's."""
    comm.Barrier()
    if comm.rank == 1:
        return
    peer = comm.size - 1 if first else 0
    if comm.rank in (0, comm.size - 1) and comm.size > 2:
        for i in range(30):
            assert comm.sendrecv(i, peer, source=peer) == i
            time.sleep(0.03)


def under_way():
    """Calls that nobody waits for end with the program."""
    requests = [comm.Iallreduce(a, b), comm.Ibcast(np.ones(100_000), 0, algorithm="binomial")]
    if first:
        time.sleep(0.5)
        MPI.Request.Waitall(requests)


def waits_for_one_that_has_left():
    """The last part of a rank's calls is on its way when its program ends."""
    for i in range(200):
        algorithm = ("shm", "binomial")[i % 2]
        comm.Bcast(a, comm.size - 1, algorithm=algorithm)
        comm.Reduce(a, b if comm.rank == i % comm.size else None, root=i % comm.size)
    plan = comm.Bcast_init(a, comm.size - 1, algorithm="binomial")
    plan.Start()
    if comm.rank != comm.size - 1:
        time.sleep(0.5)
    plan.Wait()


def served_by_mpi():
    """A call of MPI's goes on when a rank that has done its part has ended its program."""
    if comm.rank == comm.size - 1:
        time.sleep(5)
    comm.Reduce(a, b if first else None, root=0, algorithm="mpi", timeout=30)


def needed_no_more():
    """A rank that has given its data ends its program long before another one comes, in any form of a reduction."""
    on_heap = comm.full(1000, 1.0)
    for x in (a[:1], a, on_heap):
        y = np.zeros_like(x)
        if comm.rank == 2:
            time.sleep(1)
        comm.Reduce(x, y if first else None, root=0)
    if comm.rank == 2:
        time.sleep(5)
    comm.Reduce(a[:1], b[:1] if first else None, root=0)


def scanned_no_more():
    """The first ranks of a scan end their programs long before the last but one comes."""
    for x in (a[:1], a):
        comm.Scan(x, np.zeros_like(x))
    if comm.rank == 1:
        time.sleep(5)
    comm.Scan(a[:1], b[:1])


def in_a_thread():
    """The program's last calls are those of a thread that outlives the main one."""

    def work():
        time.sleep(0.5)
        for _ in range(100):
            comm.Allreduce(a, b)

    threading.Thread(target=work).start()


def in_a_group():
    """One rank ends while the others work on in a communicator without it."""
    part = comm.Split(0 if first else 1)
    if not first:
        for _ in range(10):
            part.Allreduce(a, b)
            time.sleep(0.1)


globals()[how]()
print("attack: 1 trials, 0 wrong" if comm.rank == 0 else "", flush=True)
