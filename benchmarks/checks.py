"""The cost of timeouts and checks: all-reduce of 8 bytes, plain, with a timeout, and with COLLECTIVES_CHECK=1.

    mpiexec -n 2 python benchmarks/checks.py

Prints microseconds a call: medians over rounds in which the kinds of calls take turns. The slowest rank counts.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from mpi4py import MPI

import collectives

ROUNDS, CALLS = 30, 300
x, y = np.ones(1), np.ones(1)
Kind = tuple[str, str, Callable[[], None]]


def communicator(check: str) -> collectives.Communicator:
    """A communicator whose calls are checked or not."""
    os.environ["COLLECTIVES_CHECK"] = check
    return collectives.Communicator(MPI.COMM_WORLD)


def kinds() -> list[Kind]:
    """The kinds of calls: the algorithm, which check is on, and the call."""
    plain, attribute, checked = communicator("0"), communicator("0"), communicator("1")
    attribute.timeout = 60
    made: list[Kind] = [
        ("shm", "off", lambda: plain.Allreduce(x, y)),
        ("shm", "comm.timeout", lambda: attribute.Allreduce(x, y)),
        ("shm", "timeout=60", lambda: plain.Allreduce(x, y, timeout=60)),
        ("shm", "COLLECTIVES_CHECK=1", lambda: checked.Allreduce(x, y)),
    ]
    for name in ("recursive_doubling", "mpi"):
        made += [
            (name, "off", partial(plain.Allreduce, x, y, algorithm=name)),
            (name, "comm.timeout", partial(attribute.Allreduce, x, y, algorithm=name)),
            (name, "COLLECTIVES_CHECK=1", partial(checked.Allreduce, x, y, algorithm=name)),
        ]
    return made if plain.explain("allreduce", 8).startswith("shm") else made[4:]


def measure(call: Callable[[], None]) -> float:
    """Seconds of a call on the slowest rank."""
    MPI.COMM_WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return MPI.COMM_WORLD.allreduce(time.perf_counter() - begin, MPI.MAX) / CALLS


def main() -> None:
    """Measure, and print a table on rank 0."""
    calls = kinds()
    for _, _, call in calls:
        measure(call)
    times = [[measure(call) for _, _, call in calls] for _ in range(ROUNDS)]
    if MPI.COMM_WORLD.rank:
        return
    version = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    print(f"# all-reduce of 8 bytes on {MPI.COMM_WORLD.size} ranks, {version}; us, median of {ROUNDS} rounds")
    for (algorithm, what, _), column in zip(calls, zip(*times, strict=True), strict=True):
        print(f"{algorithm:20} {what:22} {1e6 * statistics.median(column):8.2f}")


if __name__ == "__main__":
    main()
