"""An all-reduce of 8 bytes while other processes compute on the cores: ours and the MPI library's own, in turn.

    mpiexec -n 2 python benchmarks/busy.py
    mpiexec -n 2 python benchmarks/busy.py --others 4,8 --rounds 20
    mpiexec -n 2 python benchmarks/busy.py --check      exit 1 if ours takes more than 3 times as long as MPI's own

In every round each way runs for a window of time, in an order drawn for that round. The time of a call is the window
divided by the number of calls in it, so that moments in which a rank had no core count. Shown are medians and minima of
the rounds in us, the median call within a window, and `x free`: the time divided by the time without other processes.
The check compares `default` with MPI's own directly. It compares `recursive_doubling`, which on two ranks exchanges one
message, by how much longer it takes than on free cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
WINDOW, BATCH, FACTOR = 0.2, 20, 3.0
OTHER = """
import os, sys, time
os.sched_setaffinity(0, map(int, sys.argv[1:]))
end = time.monotonic() + 600
while time.monotonic() < end: pass
"""


class Times(NamedTuple):
    """Times of one way in us: median and minimum over the rounds, and the median call."""

    median: float
    least: float
    call: float


@contextlib.contextmanager
def others(count: int) -> Iterator[None]:
    """Run this number of processes beside the ranks, on any of their cores; each computes all the time."""
    cores = sorted(set().union(*WORLD.allgather(os.sched_getaffinity(0))))  # a launcher may have bound each rank to one
    line = [sys.executable, "-c", OTHER, *map(str, cores)]
    started = [subprocess.Popen(line) for _ in range(count if WORLD.rank == 0 else 0)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def window(call: Callable[[], object], signal: MPI.Intracomm) -> tuple[float, float]:
    """Seconds of a call over a window, and the median of single calls; rank 0's clock ends the window for all ranks."""
    single, over = [], np.zeros(1)
    signal.Barrier()
    begin = last = time.perf_counter()
    while not over[0]:
        for _ in range(BATCH):
            call()
            now = time.perf_counter()
            single.append(now - last)
            last = now
        over[0] = last - begin > WINDOW
        signal.Bcast(over)
        last = time.perf_counter()
    return (last - begin) / len(single), statistics.median(single)


def measure(ways: dict[str, Callable[[], object]], signal: MPI.Intracomm, rounds: int) -> dict[str, Times]:
    """The times of all ways, which are measured in turn."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    order, chance = list(ways), random.Random(1)
    for _ in range(rounds):
        chance.shuffle(order)
        for name in order:
            found[name].append(window(ways[name], signal))
    made = {}
    for name, windows in found.items():
        over, single = (np.array(column) * 1e6 for column in zip(*windows, strict=True))
        made[name] = Times(float(np.median(over)), float(over.min()), float(np.median(single)))
    return made


def wrong(free: dict[str, Times], busy: dict[str, Times], count: int) -> list[str]:
    """The ways that are above the limit."""
    made, slower = [], {name: busy[name].median / free[name].median for name in busy}
    if busy["default"].median > FACTOR * busy["MPI's own"].median:
        made.append(f"beside {count} others, default takes more than {FACTOR:g} times as long as MPI's own")
    if slower["recursive_doubling"] > FACTOR * slower["MPI's own"]:
        made.append(f"{count} others slow recursive doubling more than {FACTOR:g} times as much as MPI's own")
    return made


def main() -> int:
    """Measure, print, and check if asked to; the exit code, the same on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", default="4,8", help="numbers of other processes (4,8)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    comm, plain = collectives.Communicator(WORLD), WORLD.Dup()
    x, y = np.ones(1), np.empty(1)
    ways: dict[str, Callable[[], object]] = {
        "MPI's own": lambda: plain.Allreduce(x, y),
        "default": lambda: comm.Allreduce(x, y),
        "recursive_doubling": lambda: comm.Allreduce(x, y, algorithm="recursive_doubling"),
    }
    bad: list[str] = []
    free: dict[str, Times] = {}
    for count in (0, *map(int, args.others.split(","))):
        with others(count):
            found = measure(ways, plain, args.rounds)
        free = free or found
        bad += wrong(free, found, count) if count else []
        if WORLD.rank == 0:
            print(f"\n{count} other processes {'median':>10}{'minimum':>10}{'one call':>10}{'/ own':>8}{'x free':>8}")
            for name, times in found.items():
                ratio = times.median / found["MPI's own"].median
                print(f"{name:17} {times.median:10.2f}{times.least:10.2f}{times.call:10.2f}{ratio:8.2f}"
                      f"{times.median / free[name].median:8.1f}", flush=True)  # fmt: skip
    bad = WORLD.bcast(bad, 0)
    if args.check and WORLD.rank == 0:
        print("\n".join(["", *bad]) if bad else "\nPASS")
    comm.Free()
    return 1 if args.check and bad else 0


if __name__ == "__main__":
    sys.exit(main())
