"""Functions of the driver fail on rank 1: a clear error there. If nothing was sent, the call can be made again.

With an argument: what happens once pieces have been sent. "fault": the device fails. "killed": the rank dies.
"""

import os
import signal
import sys

import numpy as np
from mpi4py import MPI
from stand_in import Array, driver

import collectives
from collectives.core import _cuda
from collectives.cuda import lanes, staging

WORLD = MPI.COMM_WORLD
COUNT = 4 * 2048 + 100  # float64: five pieces of 16 KiB
MEMORY, OTHER = 2, 1
#: Function, number of the call that fails, code, the error; the first ones fail while the lane is made.
FAILURES = [
    ("cuDevicePrimaryCtxRetain", 1, OTHER, _cuda.CudaError), ("cuCtxPushCurrent", 1, OTHER, _cuda.CudaError),
    ("cuStreamCreate", 1, MEMORY, MemoryError), ("cuStreamCreate", 2, OTHER, _cuda.CudaError),
    ("cuMemHostRegister", 1, MEMORY, MemoryError), ("cuMemHostRegister", 4, MEMORY, MemoryError),
    ("cuEventCreate", 1, MEMORY, MemoryError), ("cuEventCreate", 5, OTHER, _cuda.CudaError),
    ("cuPointerGetAttribute", 1, OTHER, ValueError), ("cuEventRecord", 1, OTHER, _cuda.CudaError),
    ("cuStreamWaitEvent", 2, OTHER, _cuda.CudaError), ("cuMemcpyDtoHAsync", 1, OTHER, _cuda.CudaError),
    ("cuEventQuery", 1, OTHER, _cuda.CudaError),
]  # fmt: skip


def before_anything_is_sent(comm, stream):
    """Each failure, then the same call again; whether all was as it must be."""
    wrong = 0
    for symbol, number, code, kind in FAILURES:
        lanes._close()
        mine = np.arange(COUNT) % 7.0 + comm.rank
        send, recv = Array(mine, stream), Array(np.zeros(COUNT), stream)
        if comm.rank == 1:
            driver.fail(symbol, number, code)
            try:
                comm.Allreduce(send, recv)
            except kind as e:
                wrong += symbol.removesuffix("Async") not in str(e) and not isinstance(e, ValueError)
            else:
                wrong += 1
                print("no error:", symbol, flush=True)
        comm.Allreduce(send, recv)
        if not np.array_equal(recv.get(), comm.size * (np.arange(COUNT) % 7) + comm.size * (comm.size - 1) / 2):
            wrong += 1
            print("wrong result after", symbol, flush=True)
        send.free()
        recv.free()
    print(f"{len(FAILURES)} failures, {wrong} wrong", flush=True)


class Failing:
    """A lane's driver on which something happens at the third copy to the device."""

    def __init__(self, own, what):
        self._own, self._what, self._left = own, what, 3

    def __getattr__(self, name):
        return getattr(self._own, name)

    def to_device(self, *arguments):
        self._left -= 1
        if self._left == 0:
            self._what()
        self._own.to_device(*arguments)


def in_the_middle(comm, stream, what):
    """Rank 1 fails in the middle of a call; prints the error of each rank."""
    send, recv = Array(np.arange(COUNT) % 7.0, stream), Array(np.zeros(COUNT), stream)
    if comm.rank == 1:
        lane = lanes.lane_of(0)
        lane.driver = Failing(lane.driver, what)
    try:
        comm.Allreduce(send, recv, timeout=60)
    except (collectives.CollectiveError, _cuda.CudaError) as e:
        print(f"rank {comm.rank}: {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
    else:
        print(f"rank {comm.rank}: no error", flush=True)
    os._exit(0)


def main():
    comm = collectives.Communicator(WORLD)
    lanes.SLOT = staging.SLOT = 1 << 14
    stream = driver.stream(1)
    match sys.argv[1:]:
        case ["fault"]:
            in_the_middle(comm, stream, lambda: driver.fail("cuMemcpyHtoDAsync", 1, 700))
        case ["killed"]:
            in_the_middle(comm, stream, lambda: os.kill(os.getpid(), signal.SIGKILL))
        case _:
            before_anything_is_sent(comm, stream)
            comm.Free()


main()
