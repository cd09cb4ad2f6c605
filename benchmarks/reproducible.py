"""The cost of the same bits: exact sums and NumPy's sums; deterministic, reproducible and ordinary all-reduces.

    mpiexec -n 2 python benchmarks/reproducible.py
    mpiexec -n 4 python benchmarks/reproducible.py --rounds 31 --bytes 8,4KiB,1MiB

Rank 0 first sums a million ill-conditioned numbers in several orders, and times sums of arrays that fit in the cache
and of arrays that do not. Then all ranks all-reduce, in the node-local engine and by schedules, as between nodes. In
every round all ways take turns, in an order drawn for that round: a batch of calls of at least --batch ms, after a
barrier. The time of a batch is the largest over the ranks. The figures are medians over the rounds.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives
from collectives import REPRODUCIBLE_SUM

WORLD = MPI.COMM_WORLD
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}
Way = Callable[[], object]

#: Ways of an all-reduce: name, op and options.
WAYS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "sum": (MPI.SUM, {}),
    "deterministic": (MPI.SUM, None),  # the attribute
    "reproducible": (REPRODUCIBLE_SUM, {}),
}
#: Ways if ranks share no memory: the algorithms of the table, and a ring that sends accumulators.
SCHEDULED: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "sum, circulant": (MPI.SUM, {"algorithm": "circulant"}),
    "deterministic, linear": (MPI.SUM, {"algorithm": "linear", "deterministic": True}),
    "reproducible, linear": (REPRODUCIBLE_SUM, {"algorithm": "linear"}),
    "reproducible, ring": (REPRODUCIBLE_SUM, {"algorithm": "ring"}),
}


def measured(comm: MPI.Intracomm, ways: Mapping[str, Way], rounds: int, batch: float) -> dict[str, float]:
    """Seconds of each way: the median over the rounds of the slowest rank's mean over a batch."""
    draw = random.Random(1)
    times: dict[str, list[float]] = {name: [] for name in ways}
    numbers = {name: max(1, math.ceil(batch / _slowest(comm, way, 1))) for name, way in ways.items()}
    for _ in range(rounds):
        for name in draw.sample(list(ways), len(ways)):
            times[name].append(_slowest(comm, ways[name], numbers[name]))
    return {name: statistics.median(found) for name, found in times.items()}


def _slowest(comm: MPI.Intracomm, way: Way, number: int) -> float:
    way()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(number):
        way()
    return comm.allreduce((time.perf_counter() - begin) / number, MPI.MAX)


def ill_conditioned(n: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers over 30 orders of magnitude; the large ones cancel, and small ones remain."""
    x = rng.standard_normal(n * 3 // 8) * 10.0 ** rng.uniform(-15, 15, n * 3 // 8)
    return rng.permutation(np.concatenate([x, -x, rng.standard_normal(n - 2 * len(x))]))


def accuracy(rng: np.random.Generator) -> None:
    """Print how many different results a sum in 20 orders has, and their largest relative error."""
    x = ill_conditioned(1_000_000, rng)
    exact = math.fsum(x)
    print(f"1000000 float64 that cancel, exact sum {exact:.6f}, in 20 orders")
    print(f"{'':24}{'results':>10}{'largest relative error':>26}")
    for name, how in (("numpy.sum", np.sum), ("reproducible_sum", collectives.reproducible_sum)):
        found = [float(how(rng.permutation(x))) for _ in range(20)]
        print(f"{name:24}{len(set(found)):10}{max(abs(f - exact) / abs(exact) for f in found):26.1e}")


def local_sums(rng: np.random.Generator, rounds: int, batch: float) -> None:
    """Print the time of one rank's sums, in ns for an element."""
    print(f"\nns an element{'':11}{'elements':>10}{'numpy.sum':>12}{'reproducible':>14}{'ratio':>8}{'30 decades':>12}")
    for dtype in ("float32", "float64"):
        for n in (1 << 14, 1 << 24):
            x = rng.standard_normal(n, "f4").astype(dtype)
            wide = x * np.resize(10.0 ** rng.uniform(-15, 15, 1 << 14), n).astype(dtype)
            ways: dict[str, Any] = {"plain": x.sum}
            ways |= {k: lambda v=v: collectives.reproducible_sum(v) for k, v in (("exact", x), ("wide", wide))}
            got = {name: t / n * 1e9 for name, t in measured(MPI.COMM_SELF, ways, rounds, batch).items()}
            ratio = got["exact"] / got["plain"]
            print(f"{dtype:24}{n:10}{got['plain']:12.2f}{got['exact']:14.2f}{ratio:8.1f}{got['wide']:12.2f}")


def all_reduces(
    comm: collectives.Communicator,
    ways: Mapping[str, tuple[Any, dict[str, Any] | None]],
    sizes: list[int],
    rounds: int,
    batch: float,
) -> None:
    """Print tables of all-reduces: microseconds a call, by bytes of the vector."""
    strict = comm.Dup()
    strict.deterministic = True
    for dtype in ("float32", "float64", "float16"):
        of_type = {k: w for k, w in ways.items() if dtype != "float16" or w[0] is not REPRODUCIBLE_SUM}
        if comm.rank == 0:
            print(f"\n{dtype + ', us a call':22}" + "".join(f"{name:>24}" for name in of_type))
        for nbytes in sizes:
            x, y = (
                comm.empty(nbytes // np.dtype(dtype).itemsize, dtype),
                comm.empty(nbytes // np.dtype(dtype).itemsize, dtype),
            )
            x[:] = np.random.default_rng(comm.rank).standard_normal(len(x))
            runs = {name: _call(strict if how is None else comm, x, y, op, how) for name, (op, how) in of_type.items()}
            got = measured(comm, runs, rounds, batch)
            if comm.rank == 0:
                plain = next(iter(got.values()))
                cells = (f"{t * 1e6:.1f} ({t / plain:.1f})" for t in got.values())
                print(f"{nbytes:<22}" + "".join(f"{cell:>24}" for cell in cells), flush=True)


def _call(comm: collectives.Communicator, x: np.ndarray, y: np.ndarray, op: Any, options: dict[str, Any] | None) -> Way:
    return (lambda: comm.Allreduce(x, y, op, **options)) if options else (lambda: comm.Allreduce(x, y, op))


def size_of(text: str) -> int:
    """A number of bytes from text: 8, 4KiB, 1MiB."""
    unit = next((u for u in UNITS if text.endswith(u)), "")
    return int(text.removesuffix(unit)) * UNITS.get(unit, 1)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", default="8,1KiB,64KiB,1MiB,16MiB", help="lengths of the vectors")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--batch", type=float, default=3.0, metavar="MS", help="ms of a batch (%(default)s)")
    arguments = parser.parse_args()
    rounds, batch = arguments.rounds, arguments.batch / 1000
    sizes = [size_of(text) for text in arguments.bytes.split(",")]
    comm = collectives.Communicator(WORLD)
    if comm.rank == 0:
        rng = np.random.default_rng(0)
        accuracy(rng)
        local_sums(rng, rounds, batch)
        print(f"\nAll-reduces of {comm.size} ranks; in brackets, as multiples of the first column.")
    comm.Barrier()
    all_reduces(comm, WAYS, sizes, rounds, batch)
    all_reduces(comm, SCHEDULED, sizes, rounds, batch)


if __name__ == "__main__":
    main()
