"""The software that a small all-reduce between hosts costs, beside the least that mpi4py's calls cost.

    mpiexec -n 2 --host A,B python benchmarks/messages.py           two hosts
    mpiexec -n 2 python benchmarks/messages.py --check              one host: exit 1 if ours is slower than the loop

Each round measures, in an order drawn for that round, a batch of calls of each of
  ours   Allreduce of a Communicator by recursive doubling, which exchanges one message with each partner,
  loop   the same messages by mpi4py: Irecv, Isend, Testsome until both are complete, and NumPy's sum,
  MPI    the MPI library's own Allreduce.
float64, SUM; us per call, the largest over the ranks. Shown are medians over the rounds, and the medians of the ratios
of a round, with their 95 % confidence intervals: with --check, the lower end of the first must be at most 1. The number
of ranks is a power of two.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable

import _peers_report as report
import numpy as np
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
NAMES = ("ours", "loop", "MPI")
MOST = 1.0  # ours / loop

Call = Callable[[], object]


def loop(x: np.ndarray, y: np.ndarray) -> Call:
    """Recursive doubling by mpi4py's non-blocking calls."""
    comm, theirs = WORLD.Dup(), np.empty_like(x)

    def call() -> None:
        y[:] = x
        for distance in (1 << i for i in range(comm.size.bit_length() - 1)):
            peer = comm.rank ^ distance
            requests = [comm.Irecv(theirs, peer), comm.Isend(y, peer)]
            left = len(requests)
            while left:
                left -= len(MPI.Request.Testsome(requests) or ())
            np.add(y, theirs, out=y)

    return call


def calls(nbytes: int) -> dict[str, Call]:
    """The three calls, whose results have been checked."""
    x, y = np.full(nbytes // 8, WORLD.rank + 1.0), np.empty(nbytes // 8)
    comm = collectives.Communicator(WORLD)
    found: dict[str, Call] = {
        "ours": lambda: comm.Allreduce(x, y, algorithm="recursive_doubling"),
        "loop": loop(x, y),
        "MPI": lambda: WORLD.Allreduce(x, y),
    }
    for name, call in found.items():
        y.fill(0)
        call()
        if not np.all(y == sum(range(1, WORLD.size + 1))):
            raise AssertionError(f"{name}: wrong sum {y[0]}")
    return found


def batch(call: Call, count: int) -> float:
    """Mean seconds of a call, the largest over the ranks."""
    WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return WORLD.allreduce((time.perf_counter() - begin) / count, MPI.MAX)


def measure(nbytes: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Seconds of a call by name and round."""
    found = calls(nbytes)
    counts = {name: WORLD.bcast(max(5, int(seconds / batch(call, 20)))) for name, call in found.items()}
    times: dict[str, list[float]] = {name: [] for name in NAMES}
    for number in range(rounds):
        for name in random.Random(number).sample(NAMES, len(NAMES)):  # the same order on all ranks
            times[name].append(batch(found[name], counts[name]))
    return times


def main() -> int:
    """Measure and print; with --check 1 if ours takes longer than the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="8,64,1024", help="bytes, multiples of 8 (%(default)s)")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batch", type=float, default=10, help="milliseconds of a batch")
    parser.add_argument("--check", action="store_true", help="exit 1 if ours takes longer than the loop")
    args = parser.parse_args()
    if WORLD.size < 2 or WORLD.size & (WORLD.size - 1):
        parser.error("the number of ranks must be a power of two, and at least 2")
    late = False
    for nbytes in (int(size) for size in args.sizes.split(",")):
        times = measure(nbytes, args.rounds, args.batch * 1e-3)
        by_loop = report.ratio(times["ours"], times["loop"])
        late = late or by_loop.low > MOST
        if WORLD.rank == 0:
            shown = "  ".join(f"{name} {report.micro(statistics.median(times[name]))}" for name in NAMES)
            by_mpi = report.ratio(times["ours"], times["MPI"])
            print(f"{nbytes:6} bytes: {shown} us; ours/loop {by_loop}, ours/MPI {by_mpi}")
    return int(args.check and late)


if __name__ == "__main__":
    sys.exit(main())
