"""All-reduces within programs of JAX: ours, mpi4jax's if it is installed, and ours on NumPy's arrays beside them.

``mpiexec -n 2 python benchmarks/jax_latency.py [--rounds 20] [--json FILE]``. In a program: a loop of 100 all-reduces,
compiled. Alone: a program with one. Times are in us, medians and least of rounds in which all take their turns. Ratios
are medians of the rounds' ratios, and those of the least times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import collectives
import collectives.jax as cj
from collectives.files import write_json
from collectives.launch.usage import file_to_write

try:
    import mpi4jax
except ImportError:
    mpi4jax = None

CALLS = 100
LENGTHS = (8, 1 << 20)
COMM = collectives.Communicator(MPI.COMM_WORLD)
Candidate = Callable[[], Any]


def looped(allreduce: Callable[[Any], Any], x: Any) -> Candidate:
    """A compiled loop of all-reduces, of which each needs the result of the one before."""
    program = jax.jit(lambda x: jax.lax.fori_loop(0, CALLS, lambda i, x: allreduce(x), x))
    return lambda: jax.block_until_ready(program(x))


def alone(allreduce: Callable[[Any], Any], x: Any) -> Candidate:
    """Programs with one all-reduce each."""
    program = jax.jit(allreduce)

    def run() -> None:
        for _ in range(CALLS):
            jax.block_until_ready(program(x))

    return run


def plain(nbytes: int) -> Candidate:
    """All-reduces of NumPy's arrays, on our communicator."""
    x, y = np.zeros(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)

    def run() -> None:
        for _ in range(CALLS):
            COMM.Allreduce(x, y)

    return run


def candidates(nbytes: int) -> dict[str, Candidate]:
    """What is measured, by name."""
    x = jnp.zeros(nbytes // 4, jnp.float32)
    makers = {"ours": lambda x: cj.allreduce(x, comm=COMM)}
    if mpi4jax is not None:
        theirs = MPI.COMM_WORLD.Dup()
        makers["mpi4jax"] = lambda x: mpi4jax.allreduce(x, op=MPI.SUM, comm=theirs)
    found = {"NumPy": plain(nbytes)}
    for name, allreduce in makers.items():
        found[f"{name} in a program"] = looped(allreduce, x)
        found[f"{name} alone"] = alone(allreduce, x)
    return found


def measure(nbytes: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of a call in each round, on the slowest rank."""
    todo = candidates(nbytes)
    times: dict[str, list[float]] = {name: [] for name in todo}
    for number in range(rounds + 1):
        for name, run in todo.items():
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            run()
            taken = MPI.COMM_WORLD.allreduce(time.perf_counter() - begin, MPI.MAX)
            if number:  # the first round compiles
                times[name].append(taken / CALLS * 1e6)
    return times


def ratio(times: dict[str, list[float]], one: str, other: str) -> str:
    """Median of the rounds' ratios, and the ratio of the least times, as text."""
    if one not in times or other not in times:
        return "not measured"
    rounds = statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))
    return f"{rounds:.2f}, of the least times {min(times[one]) / min(times[other]):.2f}"


RATIOS = (
    ("ours in a program", "NumPy"), ("ours in a program", "mpi4jax in a program"), ("ours alone", "mpi4jax alone"),
)  # fmt: skip


def main() -> None:
    """Measure and print, on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=file_to_write, metavar="FILE")
    options = parser.parse_args()
    results = {str(nbytes): measure(nbytes, options.rounds) for nbytes in LENGTHS}
    if COMM.rank:
        return
    for nbytes, times in results.items():
        print(f"{nbytes} bytes, {COMM.size} ranks")
        for name, each in times.items():
            print(f"  {name:22} {statistics.median(each):9.2f} us, least {min(each):9.2f}")
        for one, other in RATIOS:
            print(f"  {one} / {other}: {ratio(times, one, other)}")
    if options.json:
        write_json(options.json, results)


if __name__ == "__main__":
    main()
