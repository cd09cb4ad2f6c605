"""Non-blocking all-reduces beside computation: those of `collectives` and the MPI library's own, in turn.

    mpiexec -n 4 python benchmarks/overlap.py
    mpiexec -n 8 --host A:2,B:2,C:2,D:2 python benchmarks/overlap.py --requests 16,64 --bytes 64Ki,256Ki
    mpiexec -n 4 python benchmarks/overlap.py --check        exit 1 if ours take longer than MPI's own

A batch is a number of Iallreduce of one length, begun one after the other, and a Waitall. In the rows `computing` every
rank computes after each begin. All the computation of a batch is NumPy work that takes the ranks, at the same time,
--work times as long as a batch of MPI's own without computation.

In every round both ways make one batch of each kind, in an order drawn for that round. `submit` is the time that a
batch spends in Iallreduce, `total` the time from its begin to the end of its Waitall; each is that of the slowest rank.
Shown are medians over the rounds, in us, and the median of the ratios of a round, ours divided by MPI's own, with its
95 % confidence interval. With --check, the lower end of every interval of `total` must be at most 1.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import _peers_report as report
import numpy as np
from mpi4py import MPI

import collectives
from collectives.bench.overlap import Work

WORLD = MPI.COMM_WORLD
NAMES = ("ours", "MPI")
MOST = 1.0  # ours / MPI
Begin = Callable[[Any, np.ndarray], MPI.Request]
Times = dict[tuple[str, bool], list[tuple[float, float]]]  # by way and whether it computes: submit and total by round


def sizes(text: str) -> list[int]:
    """Lengths between commas, in bytes."""
    return [report.parse_size(word) for word in text.split(",")]


def slowest(*seconds: float) -> list[float]:
    """The largest value of all ranks, of each number."""
    found = np.array(seconds)
    WORLD.Allreduce(MPI.IN_PLACE, found, MPI.MAX)
    return found.tolist()


def batch(begin: Begin, vectors: list[np.ndarray], work: Work, units: int) -> tuple[float, float]:
    """Submit and total seconds of a batch with ``units`` of work, those of the slowest rank."""
    parts, spent, requests = len(vectors), 0.0, []
    WORLD.Barrier()
    started = time.perf_counter()
    for i, vector in enumerate(vectors):
        at = time.perf_counter()
        requests.append(begin(MPI.IN_PLACE, vector))
        spent += time.perf_counter() - at
        work.do(units * (i + 1) // parts - units * i // parts)
    MPI.Request.Waitall(requests)
    submit, total = slowest(spent, time.perf_counter() - started)
    return submit, total


def work_for(seconds: float, work: Work) -> int:
    """Units of work that take all ranks together about ``seconds``."""
    probe = max(1, round(seconds / work.seconds / 10))
    WORLD.Barrier()
    begin = time.perf_counter()
    work.do(probe)
    return max(1, round(probe * seconds / slowest(time.perf_counter() - begin)[0]))


def check_sums(begins: dict[str, Begin], vectors: list[np.ndarray]) -> None:
    """Make one batch of each way with numbers; AssertionError for a wrong sum. The vectors are 0 afterwards."""
    for name, begin in begins.items():
        for i, vector in enumerate(vectors):
            vector.fill(WORLD.rank + i)
        MPI.Request.Waitall([begin(MPI.IN_PLACE, vector) for vector in vectors])
        for i, vector in enumerate(vectors):
            if not np.all(vector == WORLD.size * i + WORLD.size * (WORLD.size - 1) // 2):
                raise AssertionError(f"{name}: a wrong sum in request {i}")
            vector.fill(0)


def measure(begins: dict[str, Begin], count: int, nbytes: int, args: argparse.Namespace, work: Work) -> Times:
    """The times of batches of ``count`` requests of ``nbytes``."""
    vectors = [np.zeros(nbytes // 4, np.float32) for _ in range(count)]
    check_sums(begins, vectors)
    alone = statistics.median(batch(begins["MPI"], vectors, work, 0)[1] for _ in range(5))
    units = work_for(alone * args.work, work)
    kinds = [(name, computing) for name in NAMES for computing in (False, True)]
    times: Times = {kind: [] for kind in kinds}
    for number in range(args.rounds):
        for name, computing in random.Random(number).sample(kinds, len(kinds)):  # the same order on all ranks
            times[name, computing].append(batch(begins[name], vectors, work, units * computing))
    return times


def show(count: int, nbytes: int, times: Times) -> bool:
    """Print two rows of the table on rank 0; whether ours takes longer than MPI's own in one of them."""
    late = False
    for computing in (False, True):
        ours, theirs = (list(zip(*times[name, computing], strict=True)) for name in NAMES)
        ratio = report.ratio(ours[1], theirs[1])
        late = late or ratio.low > MOST
        medians = (report.micro(statistics.median(column)) for i in (0, 1) for column in (ours[i], theirs[i]))
        if WORLD.rank == 0:
            what = f"{count} x {report.size_name(nbytes)} {'computing' if computing else 'alone'}"
            print(f"{what:>24}" + "".join(f"{value:>14}" for value in medians) + f"   {ratio}", flush=True)
    return late


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", default="16,64", help="numbers of requests in a batch (%(default)s)")
    parser.add_argument("--bytes", type=sizes, default=[64 << 10, 256 << 10], help="lengths: 64Ki,256Ki")
    parser.add_argument("--work", type=float, default=1.0, help="computation / communication (%(default)s)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--algorithm", help="algorithm of ours; default: the one that a call chooses")
    parser.add_argument("--check", action="store_true", help="exit 1 if ours take longer than MPI's own")
    args = parser.parse_args()
    args.requests = [int(word) for word in args.requests.split(",")]
    if args.rounds < 1 or args.work <= 0 or min(args.requests) < 1 or min(args.bytes) < 4:
        parser.error("--rounds, --requests, --work: positive numbers; --bytes: at least 4")
    return args


def main() -> int:
    """Measure and print; with --check 1 if ours take longer than MPI's own."""
    args, work, comm, plain = options(), Work(), collectives.Communicator(WORLD), WORLD.Dup()
    chosen = {} if args.algorithm is None else {"algorithm": args.algorithm}
    begins: dict[str, Begin] = {
        "ours": lambda send, receive: comm.Iallreduce(send, receive, **chosen),
        "MPI": plain.Iallreduce,
    }
    if WORLD.rank == 0:
        columns = "".join(f"{text:>14}" for text in ("submit ours", "submit MPI", "total ours", "total MPI"))
        print(f"{f'{WORLD.size} ranks, us':>24}{columns}   ours/MPI [95 %], {args.rounds} rounds")
    late = [
        show(count, nbytes, measure(begins, count, nbytes, args, work))
        for count in args.requests for nbytes in args.bytes
    ]  # fmt: skip
    return int(args.check and any(late))


if __name__ == "__main__":
    sys.exit(main())
