"""Compares our collectives of Python objects with mpi4py's own, in one job, on the MPI that starts it.

    mpiexec -n 2 python benchmarks/objects.py
    mpiexec -n 2 python benchmarks/objects.py --method allgather,scatter --object tuple,1KiB --rounds 31
    mpiexec -n 2 python benchmarks/objects.py --check      exit 1 when a target is missed

In every round the two take turns, in an order drawn for that round: a warm-up, a barrier, a batch of calls of at least
--batch ms. The time of a batch is the mean time of a call, the largest over the ranks. Each rank is the root of a
broadcast in turn. A ratio is our time divided by mpi4py's; shown is the median of the ratios of all rounds. Target: no
ratio above 1.1. A case that misses the target is measured again, for longer, and the second result counts.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import collectives

LIMIT = 1.1
WORLD = MPI.COMM_WORLD


def array(nbytes: int) -> np.ndarray:
    """An array of doubles, or of bytes if it is short."""
    return np.arange(nbytes, dtype=np.uint8) if nbytes < 1024 else np.arange(nbytes / 8)


OBJECTS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "tuple": lambda: (1, 2.5, "three"),
    "dict": lambda: {"step": 7, "loss": 0.25, "shape": (3, 4)},
    "100B": lambda: array(100),
    "1KiB": lambda: array(1 << 10),
    "64KiB": lambda: array(64 << 10),
    "1MiB": lambda: array(1 << 20),
    "8MiB": lambda: array(8 << 20),
    "floats": lambda: [i / 7 for i in range(1000)],
}


def first(left: Any, right: Any) -> Any:
    """An op that costs nothing."""
    del right
    return left


def bcast(comm: Any, obj: Any) -> None:
    """From each rank in turn."""
    for root in range(WORLD.size):
        comm.bcast(obj, root)


#: The methods, and how many collectives a call of each makes.
METHODS: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "bcast": (bcast, WORLD.size),
    "gather": (lambda comm, obj: comm.gather(obj), 1),
    "allgather": (lambda comm, obj: comm.allgather(obj), 1),
    "scatter": (lambda comm, obj: comm.scatter([obj] * WORLD.size), 1),
    "alltoall": (lambda comm, obj: comm.alltoall([obj] * WORLD.size), 1),
    "allreduce": (lambda comm, obj: comm.allreduce(obj, first), 1),
    "scan": (lambda comm, obj: comm.scan(obj, first), 1),
}


class Row(NamedTuple):
    """Microseconds of each round."""

    method: str
    obj: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """The median of our time divided by mpi4py's."""
        return statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))

    def __str__(self) -> str:
        figures = (f"{statistics.median(t):11.2f}{min(t):10.2f}" for t in (self.ours, self.theirs))
        return f"{self.method:12}{self.obj:8}" + "".join(figures) + f"{self.ratio:8.2f}"


def batch(call: Callable[[Any, Any], Any], comm: Any, obj: Any, calls: int) -> float:
    """Seconds per call, of the slowest rank."""
    call(comm, obj)
    WORLD.Barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        call(comm, obj)
    return WORLD.allreduce((time.perf_counter() - begin) / calls, MPI.MAX)


def measure(method: str, name: str, comms: list[Any], rounds: int, milliseconds: float) -> Row:
    """Rounds in which the communicators take turns."""
    (call, count), obj, order = METHODS[method], OBJECTS[name](), random.Random(0)
    once = [min(batch(call, comm, obj, 3) for _ in range(2)) for comm in comms]
    calls = [max(1, int(milliseconds / 1000 / seconds)) for seconds in once]
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for i in order.sample(range(2), 2):
            times[i].append(batch(call, comms[i], obj, calls[i]) / count * 1e6)
    return Row(method, name, *times)


def listed(known: Any) -> Callable[[str], list[str]]:
    """A type of option: names between commas."""

    def names(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if unknown := [word for word in found if word not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: not one of {', '.join(known)}")
        return found

    return names


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", type=listed(METHODS), default=["bcast", "allgather", "allreduce"], help="methods")
    parser.add_argument("--object", type=listed(OBJECTS), default=list(OBJECTS), help="kinds of objects (all)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--batch", type=float, default=5, help="ms of a batch (%(default)g)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    return parser.parse_args()


def main() -> int:
    """Measure, print, and compare with the target."""
    args = arguments()
    comms = [collectives.Communicator(WORLD), WORLD.Dup()]
    say = print if WORLD.rank == 0 else lambda *_, **__: None
    library = MPI.Get_library_version().rstrip("\0").split("\n")[0].split(", ")[0]
    say(f"{library}, {WORLD.size} ranks; us per collective: median, least")
    say(f"{'method':12}{'object':8}{'ours':>11}{'':10}{'mpi4py':>11}{'':10}{'ratio':>8}")
    missed = 0
    gc.disable()
    for method in args.method:
        for name in args.object:
            row = measure(method, name, comms, args.rounds, args.batch)
            if WORLD.bcast(row.ratio) > LIMIT:
                row = measure(method, name, comms, 3 * args.rounds, args.batch)
            missed += WORLD.bcast(row.ratio) > LIMIT
            say(row, flush=True)
    say(f"{missed} above {LIMIT}" if missed else f"none above {LIMIT}")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
