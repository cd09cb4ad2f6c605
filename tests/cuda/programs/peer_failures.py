"""Functions of the driver fail on rank 1 while ranks get to know each other's memory: all go through the host then.

So they do if rank 1's environment says it.

With an argument: what happens once a call is under way. "fault": the device fails. "killed": the rank dies before it
has folded its block; "killed late": before it has copied the others'; "killed last": when only its GPU has something
left to do. "mixed": rank 0's array is on the host. "absent": a rank does not make the first call.
"""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI
from stand_in import Array, WithoutStream, driver, use_kernels

import collectives
from collectives.communicator import device_peers
from collectives.core import _cuda
from collectives.cuda import lanes, ordering, peers

WORLD = MPI.COMM_WORLD
COUNT = 20000
MEMORY, OTHER = 2, 801
#: Function, number of the call that fails, code, who serves all-reduces and broadcasts afterwards, words of `explain`.
FAILURES = [
    ("cuEventCreate", 2, MEMORY, "shm", "shm", "cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY"),
    ("cuIpcGetEventHandle", 3, OTHER, "shm", "shm", "cuIpcGetEventHandle"),
    ("cuIpcOpenEventHandle", 2, OTHER, "shm", "shm", "cuIpcOpenEventHandle"),
    ("cuMemAlloc", 1, MEMORY, "shm", "shm", "cuMemAlloc"),
    ("cuIpcGetMemHandle", 1, OTHER, "shm", "shm", "cuIpcGetMemHandle"),
    ("cuIpcOpenMemHandle", 1, OTHER, "shm", "shm", "cuIpcOpenMemHandle"),
    ("cuModuleLoadData", 1, OTHER, "shm", "peers", "the driver does not take the CUDA kernels"),
    ("COLLECTIVES_GPU_PATH", 0, 0, "shm", "shm", "COLLECTIVES_GPU_PATH is staging"),
    (None, 0, 0, "peers", "peers", ""),
]


def set_up(stream):
    """Each failure, on a new communicator; how many were not as they must be."""
    wrong = 0
    for symbol, number, code, reduces, moves, words in FAILURES:
        lanes._close()
        comm = collectives.Communicator(WORLD)
        mine = Array(np.full(COUNT, 1.0 + comm.rank), stream)
        if comm.rank == 1 and number:
            lanes.lane_of(0)
            driver.fail(symbol, number, code)
        elif comm.rank == 1 and symbol:
            os.environ[symbol] = "staging"
        comm.Allreduce(MPI.IN_PLACE, mine)
        good = (mine.get() == comm.size * (comm.size + 1) / 2).all() and comm.last.algorithm == reduces
        comm.Bcast(mine)
        good &= (mine.get() == comm.size * (comm.size + 1) / 2).all() and comm.last.algorithm == moves
        told = comm.explain("allreduce", 8 * COUNT, "float64", gpu=True)
        good &= words in told and (not words or "rank 1: " in told) and told.startswith(("peers", "staging"))
        wrong += not good
        if not good:
            print("wrong:", symbol, comm.last, told, flush=True)
        mine.free()
        comm.Free()
        os.environ.pop("COLLECTIVES_GPU_PATH", None)
    print(f"{len(FAILURES)} failures, {wrong} wrong", flush=True)


def in_the_middle(stream, what, left):
    """Rank 1 fails at its n-th move of the second call; prints the error of each rank."""
    comm = collectives.Communicator(WORLD)
    mine = Array(np.full(COUNT, 1.0), stream)
    comm.Allreduce(MPI.IN_PLACE, mine)
    make = peers.Peers._make

    def failing(self, move, call):
        nonlocal left
        left -= 1
        if left == 0:
            what()
        make(self, move, call)

    if comm.rank == 1:
        peers.Peers._make = failing
    report(comm, mine)


def at_the_end(stream):
    """Rank 1 dies when the hosts have met for the last time. Rank 0 waits for its GPU, since it knows no stream."""
    comm = collectives.Communicator(WORLD)
    mine = Array(np.full(COUNT, 1.0), stream) if comm.rank else WithoutStream(np.full(COUNT, 1.0))
    comm.Allreduce(MPI.IN_PLACE, mine)
    if comm.rank == 1:
        driver.late(1_000_000)
        for _ in range(10):
            mine.fill(1.0)
        ordering.Order.lead = lambda *arguments: kill()
    report(comm, mine, goes_on)


def goes_on():
    """Arrays on the GPU are served after a failure, whatever the streams of the failed call wait for."""
    made = Array(np.ones(COUNT), driver.stream(1))
    collectives.Communicator(MPI.COMM_SELF).Allreduce(MPI.IN_PLACE, made, timeout=30)
    print(f"goes on: {made.get().sum() == COUNT}", flush=True)


def absent(stream):
    """Rank 1 comes to the first call late."""
    comm = collectives.Communicator(WORLD)
    if comm.rank == 1:
        time.sleep(5)
        os._exit(0)
    report(comm, Array(np.full(COUNT, 1.0), stream), timeout=1)


def report(comm, mine, then=lambda: None, timeout=60):
    try:
        comm.Allreduce(MPI.IN_PLACE, mine, timeout=timeout)
    except (collectives.CollectiveError, _cuda.CudaError) as e:
        print(f"rank {comm.rank}: {type(e).__name__}: {str(e)}", flush=True)
        print(f"rank {comm.rank} then: {comm!r}", flush=True)
    else:
        print(f"rank {comm.rank}: no error", flush=True)
    then()
    sys.stdout.flush()
    lanes._close()  # which waits for nothing
    os._exit(0)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


use_kernels()
device_peers.LEAST = 1024
own = driver.stream(1)
match sys.argv[1:]:
    case ["fault"]:
        in_the_middle(own, lambda: driver.fail("cuLaunchKernel", 1, 700), 1)
    case ["killed"]:
        in_the_middle(own, kill, 1)
    case ["killed", "late"]:
        in_the_middle(own, kill, 2)
    case ["killed", "last"]:
        at_the_end(own)
    case ["absent"]:
        absent(own)
    case ["mixed"]:
        made = collectives.Communicator(WORLD)
        report(made, np.ones(COUNT) if made.rank == 0 else Array(np.ones(COUNT), own))
    case _:
        set_up(own)
