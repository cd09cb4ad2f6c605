"""What ``train.Run`` costs in a step that does nothing else: microseconds, on the slowest rank.

    mpiexec -n 2 python benchmarks/train_run.py
    mpiexec -n 2 python benchmarks/train_run.py --check 10      exit 1 if a vote takes more microseconds

The rows are the batches of a loader; the same within `Run.steps`; the vote of the ranks, which is a part of that; some
work; and the same work while a vote is under way. But for the work, ranks do nothing but wait for each other. Each row
is a median over rounds in which the rows take turns, with the least and the greatest value. The least ones, which
other processes of the machine disturb least, are what --check judges.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.checkpoint.saver import Vote
from collectives.train.run.votes import News, Votes

WORLD = MPI.COMM_WORLD
NOTHING = News(0, False, Vote(False, 0))


def busy(seconds: float) -> None:
    """Compute for so long, not counting the time in which other processes have the core."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Rows:
    """The kinds of steps that are measured; each function makes ``steps`` of them."""

    def __init__(self, comm: collectives.Communicator, steps: int, work: float) -> None:
        self._data = train.Loader((np.zeros(steps * comm.size),), comm.size, comm=comm)
        self._comm, self._steps, self._work = comm, steps, work
        self.all: dict[str, Callable[[], None]] = {
            "loader": self._loader,
            "loader in a run": self._run,
            "vote": self._vote,
            "work": self._working,
            "work beside a vote": self._working_beside,
        }

    def _loader(self) -> None:
        for _ in self._data:
            pass

    def _run(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # the run tells of its end
            run = train.Run(comm=self._comm, progress="lines", every=2 * self._steps)
            for _ in run.steps(self._data, epochs=self._data.epoch + 1):
                pass

    def _vote(self) -> None:
        votes = Votes(self._comm)
        for _ in range(self._steps):
            votes.cast(NOTHING)
            votes.result()

    def _working(self) -> None:
        for _ in range(self._steps):
            busy(self._work)

    def _working_beside(self) -> None:
        votes = Votes(self._comm)
        for _ in range(self._steps):
            votes.cast(NOTHING)
            busy(self._work)
            votes.result()

    def measure(self, name: str) -> float:
        """Microseconds of a step on the slowest rank."""
        WORLD.Barrier()
        begin = time.perf_counter()
        self.all[name]()
        return 1e6 * WORLD.allreduce(time.perf_counter() - begin, MPI.MAX) / self._steps


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="of a round (%(default)s)")
    parser.add_argument("--work", type=float, default=100.0, help="microseconds (%(default)g)")
    parser.add_argument("--check", type=float, metavar="US", help="the most that a vote may take, alone or beside work")
    args = parser.parse_args()
    if min(args.rounds, args.steps) < 1 or args.work <= 0:
        parser.error("--rounds, --steps, --work: positive numbers")
    return args


def main() -> int:
    """Measure all rows and print them on rank 0."""
    args, comm = options(), collectives.Communicator(WORLD)
    rows = Rows(comm, args.steps, args.work / 1e6)
    times: dict[str, list[float]] = {name: [] for name in rows.all}
    for _ in range(args.rounds):
        for name, found in times.items():
            found.append(rows.measure(name))
    medians = {name: statistics.median(found) for name, found in times.items()}
    if comm.rank == 0:
        print(f"{comm.size} ranks, {args.rounds} rounds of {args.steps} steps")
        for name, median in medians.items():
            print(f"{name:<24}{median:>8.1f} us   ({min(times[name]):.1f} to {max(times[name]):.1f})")
    least = {name: min(found) for name, found in times.items()}
    slowest = max(least["vote"], least["work beside a vote"] - least["work"])
    return int(args.check is not None and slowest > args.check)


if __name__ == "__main__":
    sys.exit(main())
