"""The cost of recording a timeline: the same calls with and without, in turn, in one job.

    mpiexec -n 2 python benchmarks/trace.py
    mpiexec -n 2 python benchmarks/trace.py --calls 5000 --rounds 101
    mpiexec -n 2 python benchmarks/trace.py --check      exit 1 when recording adds 1 us or more to a call

In every round each case runs once recorded and once not, in an order drawn for that round: a barrier, then a batch of
calls. The time of a batch is the mean time of a call in us, the largest over the ranks. Shown are medians and minima of
the rounds, the median of the rounds' ratios and, in the column 'more', the time that recording adds to the minimum.
When nothing is recorded, a call tests one pointer. The column 'off' includes that time, as benchmarks/peers.py does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives

LIMIT = 1.0  # us
WORLD = MPI.COMM_WORLD


def cases(comm: Any) -> dict[str, Callable[[], Any]]:
    """The calls, by name."""
    x, y = np.ones(1), np.empty(1)
    again = comm.Allreduce_init(x, y)

    def deeper() -> None:
        comm.Allreduce(x, y)

    def started() -> None:
        comm.Iallreduce(x, y).Wait()

    def restarted() -> None:
        again.Start()
        again.Wait()

    def spanned() -> None:
        with collectives.span("part"):
            pass

    return {
        "Allreduce, 8 bytes": lambda: comm.Allreduce(x, y),
        "the same, in a function of its own": lambda: deeper(),
        "Barrier": lambda: comm.Barrier(),
        "Allreduce, 8 bytes, ring": lambda: comm.Allreduce(x, y, algorithm="ring"),
        "Iallreduce and Wait, 8 bytes": started,
        "persistent, Start and Wait, 8 bytes": restarted,
        "span": spanned,
    }


def batch(comm: Any, call: Callable[[], Any], calls: int, recorded: bool, path: str) -> float:
    """Mean time of a call in us, the largest over the ranks."""
    recording = comm.trace(path, events=3 * calls + 10) if recorded else contextlib.nullcontext()
    with recording:
        for _ in range(20):
            call()
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        mine = (time.perf_counter() - begin) / calls * 1e6
    return WORLD.allreduce(mine, MPI.MAX)


def measure(comm: Any, args: argparse.Namespace, path: str) -> dict[str, tuple[list[float], list[float]]]:
    """Times of all rounds, not recorded and recorded."""
    draw = random.Random(1)
    calls = cases(comm)
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in calls}
    for number in range(args.rounds + 1):  # the first one warms up
        for name, call in calls.items():
            for recorded in draw.sample((False, True), 2):
                took = batch(comm, call, args.calls, recorded, path)
                if number:
                    times[name][recorded].append(took)
    return times


def main() -> int:
    """Measure, print, and with --check judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="calls of a batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=31, help="rounds (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help=f"exit 1 at {LIMIT:g} us more for any line")
    args = parser.parse_args()
    comm = collectives.Communicator(WORLD)
    with tempfile.TemporaryDirectory() as folder:
        path = WORLD.bcast(os.path.join(folder, "timeline.json"))
        times = measure(comm, args, path)
        WORLD.Barrier()
    if WORLD.rank == 0:
        print(f"{'us for a call':36}{'off':>8}{'min':>8}{'on':>8}{'min':>8}{'on/off':>8}{'more':>8}")
    missed = 0
    for name, (off, on) in times.items():
        more = min(on) - min(off)
        ratio = statistics.median(b / a for a, b in zip(off, on, strict=True))
        missed += more >= LIMIT
        if WORLD.rank == 0:
            cells = statistics.median(off), min(off), statistics.median(on), min(on), ratio, more
            print(f"{name:36}" + "".join(f"{cell:8.2f}" for cell in cells), flush=True)
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
