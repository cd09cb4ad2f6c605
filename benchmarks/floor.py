"""What an all-reduce of heap arrays on one node must cost: its parts, each measured alone, beside the whole.

    mpiexec -n 2 python benchmarks/floor.py

float32, SUM, out of place, us per call, minima over rounds. The parts: `call`, Python and engine for a communicator of
one rank; `flag`, what the cheapest call of all ranks takes beyond that; `pass`, what each rank's kernel takes for its
slice of all inputs and outputs, all ranks at the same time. Inputs and outputs lie where the all-reduce has them, so
`pass` is the bandwidth of whichever cache holds them, or of memory. No engine that moves each byte once can be faster
than `sum` by more than what overlaps.
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
    """Least over rounds, largest over ranks, us of a call made by all ranks."""
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
    """The pass of each rank over its slice, less what the function itself costs."""
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
