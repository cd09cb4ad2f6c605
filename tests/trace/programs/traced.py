"""A program to be traced by ../test_trace.py: every form of call, and rank 1 late at one of them."""

import sys
import time

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
x, y, whole = np.ones(1), np.empty(1), np.empty(comm.size)


def blocking():
    for i in range(5):
        if i == 2 and comm.rank == 1:
            time.sleep(0.2)
        comm.Allreduce(x, y)  # rank 1 is late here


def every_collective():
    comm.Barrier()
    comm.Bcast(x, root=0)
    comm.Reduce(x, y, root=0)
    comm.Gather(x, whole, root=0)
    comm.Scatter(whole, y, root=0)
    comm.Allgather(x, whole)
    comm.Alltoall(whole, np.empty_like(whole))
    comm.Scan(x, y)
    comm.Exscan(x, y)
    comm.Reduce_scatter_block(whole, y)
    comm.Allgatherv(x, [whole, [1] * comm.size])
    comm.Reduce_scatter(whole, y, [1] * comm.size)
    comm.Allreduce(x, y, algorithm="ring")
    comm.Allreduce(x, y, algorithm="ring")  # a call like an earlier one goes another way
    comm.Allreduce(x, y, algorithm="mpi")
    with comm.group():
        comm.Allreduce(x, y)
        comm.Allreduce(x.copy(), y.copy())
    comm.bcast({"some": "object"})


def overlapped():
    big = np.ones(500_000)
    with collectives.span("both"):
        time.sleep(0.2 * (comm.rank == 1))  # so that rank 0's is under way all the while
        request = comm.Iallreduce(big, np.empty_like(big))
        with collectives.span("compute"):
            time.sleep(0.01)
        request.Wait()
    comm.Iallreduce(x, y, algorithm="mpi").Wait()
    for algorithm in ("shm", "ring", "mpi"):
        plan = comm.Allreduce_init(x, y, algorithm=algorithm)
        for _ in range(2):
            plan.Start()
            plan.Wait()
        plan.Free()


def started():
    """Calls of 8 bytes that begin on the fast path: waited for, polled, and waited for after the end."""
    comm.Iallreduce(x, y).Wait()
    polled = comm.Ibcast(x, comm.size - 1)
    while not polled.Test():
        pass
    ended = comm.Iallgatherv(x, [whole, [1] * comm.size])
    time.sleep(0.1)
    ended.Wait()
    comm.Barrier()


def far_apart():
    """Only the shortest of many calls say how far apart the clocks are."""
    for _ in range(200):
        comm.Barrier()


if __name__ == "__main__":
    for part in sys.argv[1:]:
        if part == "finalize":
            MPI.Finalize()
        elif part == "fail":
            comm.Barrier()
            if comm.rank == 1:
                raise RuntimeError("planted")
            comm.Barrier()
        elif part == "time_out":
            if comm.rank:
                comm.Allreduce(x, y, timeout=0.2)
            else:
                time.sleep(2)
        else:
            globals()[part]()
