"""The least time of an all-reduce of heap arrays on one node: its parts, each measured alone, and the whole.

    mpiexec -n 2 python benchmarks/floor.py

float32, SUM, out of place, us per call, minima over rounds. The parts are `call`, the time of Python and engine for a
communicator of one rank; `flag`, the time that the cheapest call of all ranks takes beyond that; and `pass`, the time
of each rank's kernel for its slice of all inputs and outputs, on all ranks at the same time. The kernel works on the
arrays of the all-reduce. So `pass` is limited by the bandwidth of the cache that holds them, or of memory. No engine
that moves each byte once can be faster than `sum` by more than what overlaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import collectives
from collectives.core import _core

WORLD = MPI.COMM_WORLD
FLOAT32, SUM = _core.DTYPES.index("float32"), _core.OPS.index("sum")
SIZES = [8, 1 << 10, *(1 << k for k in range(14, 27, 2))]
ROUNDS, SECONDS = 15, 2e-3


def cost(call: Callable[[], object]) -> float:
    """Microseconds of a call made by all ranks: the least over rounds of the largest over ranks."""
    call()
    begin = time.perf_counter()
    call()
    batch = WORLD.allreduce(max(3, int(SECONDS / max(time.perf_counter() - begin, 1e-7))), MPI.MIN)
    least = float("inf")
    for _ in range(ROUNDS):
        WORLD.Barrier()
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        least = min(least, (time.perf_counter() - begin) / batch)
    return WORLD.allreduce(least, MPI.MAX) * 1e6


def kernel(comm: collectives.Communicator, nbytes: int) -> float:
    """Microseconds of each rank's pass over its slice, less the cost of the function call."""
    slice_bytes = max(4, nbytes // comm.size)

    def timed(length: int) -> float:
        arrays = [comm.zeros(length, np.uint8) for _ in range(2 * comm.size)]
        sources, targets = arrays[: comm.size], arrays[comm.size :]
        return cost(lambda: _core.reducep(FLOAT32, SUM, targets, sources))

    return max(0.0, timed(slice_bytes) - timed(4))


def main() -> None:
    """Print the table."""
    comm, alone = collectives.Communicator(WORLD), collectives.Communicator(MPI.COMM_SELF)
    one, result = comm.zeros(2, np.float32), comm.zeros(2, np.float32)
    call = cost(lambda: alone.Allreduce(one, result))
    flag = max(0.0, cost(lambda: comm.Allreduce(one, result)) - call)
    if comm.rank == 0:
        print(f"# {comm.size} ranks, {MPI.Get_library_version().split(chr(10))[0][:60]}")
        print("".join(f"{name:>10}" for name in ("bytes", "call", "flag", "pass", "sum", "measured", "sum/it")))
    for nbytes in SIZES:
        x, y = comm.zeros(nbytes // 4, np.float32), comm.zeros(nbytes // 4, np.float32)
        least, whole = kernel(comm, nbytes), cost(lambda x=x, y=y: comm.Allreduce(x, y))  # type: ignore[misc]
        total = call + flag + least
        if comm.rank == 0:
            figures = (call, flag, least, total, whole)
            print(f"{nbytes:>10}" + "".join(f"{f:>10.2f}" for f in figures) + f"{total / whole:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
