"""Collectives between hosts with slow links: our default beside the MPIs' own, and beside what the links allow.

    sudo python benchmarks/hosts.py --check            all layouts; exit 1 beyond the limits
    sudo python benchmarks/hosts.py --layouts 4x2 --sizes 4Mi --collectives allreduce --mpis openmpi
    sudo python benchmarks/hosts.py --rate "" --sizes 1Mi      links without a limit

The hosts are network namespaces of this machine (tests/support/faults.py), whose links have a rate, so that links and
not cores set the times. A layout is 4x2 (4 hosts with 2 ranks each, in blocks), 4x2c (the ranks dealt to the hosts in
turn) or 1+2+1 (the ranks of each host). Each MPI of .venvs runs one job for each layout, in which our default and the
MPI's own collective take turns, float32, SUM; the links rest before each call. Shown are medians over the rounds, of
the time from when the last rank begins until the last ends. The bound is the time of the bytes that the busiest link
must carry one way, less the 256 KiB that a link at rest lets through at once. A ratio to the MPI's own is the median
over the rounds, one to the best of medians. A vector of at most 1 KiB is timed by 500 calls in a row, without rests.

--check: an all-reduce of at least 4 MiB takes at most 1.10 of the bound (1.15 on more than 8 ranks), and from 256 KiB
on at most 1.02 of the MPI's own; one of at most 1 KiB takes at most 1.15 of the MPI's own on 2 hosts, and 1.02 on more;
other collectives take at most 1.15 of the best MPI's own, or, where the links pass all at once, so that the MPIs'
ways to send a message set the times, of this MPI's own; or as much of the bound.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/support"))

from faults import BURST, Hosts, bytes_per_second  # noqa: E402
from jobs import MPIS, launch  # noqa: E402

WORKER = Path(__file__).with_name("_hosts_worker.py")
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20}
LAYOUTS = "4x1,4x2,4x2c,3x2,3x2c,4x4,4x4c,8x1,5x1,7x1,1+2+1"
COLLECTIVES = "allreduce,allgather,reduce_scatter_block,bcast,alltoall"
#: The most that is right: over the bound on few and on many ranks, over an MPI's own, over the best of these.
BOUND, BOUND_MANY, OWN, BEST = 1.10, 1.15, 1.02, 1.15
MANY, LONG, LEAST = 8, 4 << 20, 256 << 10
#: A vector of at most so many bytes is timed by so many calls in a row; the limit over the MPI's own between two hosts.
SHORT, BATCH, SHORT_OWN = 1 << 10, 500, 1.15


@dataclass(frozen=True)
class Layout:
    """How ranks lie on hosts: ``ranks_on[i]`` of them on host i; ``cyclic``: dealt to the hosts in turn."""

    name: str
    ranks_on: tuple[int, ...]
    cyclic: bool

    @staticmethod
    def of(text: str) -> Layout:
        """The layout that ``4x2``, ``4x2c`` or ``1+2+1`` names; ValueError for other texts."""
        if found := re.fullmatch(r"(\d+)x(\d+)(c?)", text):
            hosts, ranks = int(found[1]), int(found[2])
            if hosts > 1 and ranks > 0:
                return Layout(text, (ranks,) * hosts, bool(found[3]))
        elif re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)+", text):
            return Layout(text, tuple(map(int, text.split("+"))), False)
        raise ValueError(f"--layouts: {text!r} is not like 4x2, 4x2c or 1+2+1, on at least 2 hosts")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.ranks_on)

    def order(self) -> list[int]:
        """The number in the job, where each host's ranks follow each other, of each rank of the communicator."""
        first = [sum(self.ranks_on[:host]) for host in range(len(self.ranks_on))]
        places = [(local, first[host]) for host, n in enumerate(self.ranks_on) for local in range(n)]
        return [local + begin for local, begin in sorted(places)] if self.cyclic else list(range(self.size))

    def crossing(self, collective: str, nbytes: int) -> float:
        """Bytes that the busiest link must carry one way, for a vector of ``nbytes`` bytes, all blocks together."""
        hosts, size = len(self.ranks_on), self.size
        match collective:
            case "allreduce":
                return 2 * nbytes * (hosts - 1) / hosts
            case "bcast" | "reduce":
                return nbytes
            case "alltoall" | "alltoallv":
                return max(n * (size - n) for n in self.ranks_on) * nbytes / size
            case "gather" | "scatter":  # rank 0 is the root
                return nbytes * (size - self.ranks_on[0]) / size
            case "allgather" | "allgatherv" | "reduce_scatter" | "reduce_scatter_block":
                return nbytes * (size - min(self.ranks_on)) / size  # of the other hosts, to or from one of fewest ranks
            case _:
                raise ValueError(f"--collectives: it is not known how many bytes of {collective} cross links")


@dataclass(frozen=True)
class Case:
    """One collective and length on one layout: the seconds of each round, by MPI and contestant."""

    layout: Layout
    collective: str
    nbytes: int
    bound: float  # seconds; 0 if the links have no limit, or pass it all at once
    by_links: bool  # whether most bytes wait for the links; else the MPIs' ways to send a message set the times
    times: dict[str, dict[str, list[float]]]
    algorithm: str

    def median(self, mpi: str, name: str) -> float:
        """Seconds of a contestant."""
        return statistics.median(self.times[mpi][name])

    def by_own(self, mpi: str) -> float:
        """Our time over that of the MPI's own, in the rounds of one job."""
        found = self.times[mpi]
        return statistics.median(a / b for a, b in zip(found["ours"], found["own"], strict=True))

    def by_best(self, mpi: str) -> float:
        """Our time on an MPI over the best own time of all MPIs."""
        return self.median(mpi, "ours") / min(self.median(other, "own") for other in self.times)

    def by_bound(self, mpi: str) -> float | None:
        """Our time over what the links allow, if that is known."""
        return self.median(mpi, "ours") / self.bound if self.bound else None

    def line(self) -> str:
        """A row of the table."""
        cells = [f"{self.layout.name:7}", f"{self.collective:20}", f"{self.nbytes:>9}", f"{1e3 * self.bound:8.1f}"]
        digits = ".4f" if self.nbytes <= SHORT else ".1f"
        for mpi in self.times:
            over = self.by_bound(mpi)
            own, ours = (1e3 * self.median(mpi, name) for name in ("own", "ours"))
            shown = "   - " if over is None else f"{over:5.2f}"
            cells.append(f"{own:8{digits}} {ours:8{digits}} {shown} {self.by_own(mpi):5.2f} {self.by_best(mpi):5.2f}")
        return " ".join(cells)

    def beyond(self) -> list[str]:
        """What is beyond the limits, as sentences."""
        found = []
        where = f"{self.collective} of {self.nbytes} bytes on {self.layout.name}"
        for mpi in self.times:
            over, most = self.by_bound(mpi), BOUND_MANY if self.layout.size > MANY else BOUND
            if self.collective != "allreduce":
                ratio, whose = (self.by_best(mpi), "best MPI") if self.by_links else (self.by_own(mpi), "MPI")
                if ratio > BEST and (over is None or over > BEST):
                    found.append(f"{where}, {mpi}: {ratio:.2f} of the {whose}'s own, limit {BEST:.2f}")
                continue
            if self.nbytes >= LONG and over is not None and over > most:
                found.append(f"{where}, {mpi}: {over:.2f} of the bound, limit {most:.2f}")
            allowed = SHORT_OWN if self.nbytes <= SHORT and len(self.layout.ranks_on) == 2 else OWN
            if (self.nbytes >= LEAST or self.nbytes <= SHORT) and self.by_own(mpi) > allowed:
                found.append(f"{where}, {mpi}: {self.by_own(mpi):.2f} of the MPI's own, limit {allowed:.2f}")
        return found


def heading(mpis: Sequence[str]) -> str:
    """The heading of the table, in two lines."""
    columns = " ".join(f"{mpi + ': own':>8}     ours bound   own  best" for mpi in mpis)
    first = f"{'layout':7} {'collective':20} {'bytes':>9} {'bound':>8} {columns}"
    return f"ms; ratios of ours to the bound, to the MPI's own, to the best MPI's own\n{first}"


def per_second(rate: str) -> float:
    """Bytes a second of a rate in tc's words, infinite for none; ValueError for other words."""
    try:
        return bytes_per_second(rate) if rate else float("inf")
    except ValueError as e:
        raise ValueError(f"--rate: {e}") from None


def length(text: str) -> int:
    """Bytes that ``4Mi`` means; ValueError for other texts."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|)", text)
    if found is None:
        raise ValueError(f"--sizes: {text!r} is not like 256Ki")
    return int(found[1]) * UNITS[found[2]]


def job(
    mpi: str, hosts: Hosts, ranks_on: Sequence[int], worker: Path, told: Any, limit: int,
    env: dict[str, str] | None = None,
) -> list[Any]:  # fmt: skip
    """What a job of ``worker`` on so many ranks of each host prints in lines of JSON; RuntimeError if it fails.

    ``told`` is the worker's argument, as JSON; ``limit`` is in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        flags = hosts.flags(mpi, Path(folder), ranks_on, ("PYTHONPATH", "OMP_NUM_THREADS", *(env or {})))
        line, how = launch(mpi, sum(ranks_on), [str(worker), json.dumps(told)], env, flags)
        done = subprocess.run(["timeout", "-k", "5", str(limit), *map(str, line)], capture_output=True, **how)
    if done.returncode:
        raise RuntimeError(f"{mpi} on {ranks_on} ranks ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]


def run(mpi: str, hosts: Hosts, layout: Layout, cases: list[tuple[str, int]], args: argparse.Namespace) -> list[Any]:
    """What one job measured, a record for each case."""
    rest = 2 * BURST / per_second(args.rate)
    told = {
        "order": layout.order(),
        "cases": cases,
        "rounds": args.rounds,
        "rest": rest,
        "short": SHORT,
        "batch": BATCH,
    }
    records = job(mpi, hosts, layout.ranks_on, WORKER, told, args.limit)
    if len(records) != len(cases):
        raise RuntimeError(f"{mpi} on {layout.name}: {len(records)} records of {len(cases)} cases")
    return records


def measure(hosts: Hosts, layout: Layout, args: argparse.Namespace) -> list[Case]:
    """All cases of one layout."""
    wanted = [(collective, nbytes) for collective in args.collectives.split(",") for nbytes in args.lengths]
    jobs = {mpi: run(mpi, hosts, layout, wanted, args) for mpi in args.mpis.split(",")}
    found = []
    for records in zip(*jobs.values(), strict=True):
        collective, nbytes = records[0]["collective"], records[0]["nbytes"]
        carried = max(0.0, layout.crossing(collective, nbytes) - BURST)
        bound = carried / per_second(args.rate)
        times = {mpi: {name: record[name] for name in ("ours", "own")}
                 for mpi, record in zip(jobs, records, strict=True)}  # fmt: skip
        by_links = bound > 0 and carried > BURST
        found.append(Case(layout, collective, nbytes, bound, by_links, times, records[0]["algorithm"]))
    return found


def options() -> argparse.Namespace:
    """The arguments, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", default=LAYOUTS, help="(%(default)s)")
    parser.add_argument("--sizes", default="256Ki,1Mi,4Mi,16Mi", help="bytes of the whole vector (%(default)s)")
    parser.add_argument("--collectives", default=COLLECTIVES, help="(%(default)s)")
    parser.add_argument("--mpis", default=",".join(MPIS), help="(%(default)s)")
    parser.add_argument("--rate", default="200mbit", help="of each link, each way; '' for none (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each contestant (%(default)s)")
    parser.add_argument("--limit", type=int, default=900, help="seconds that a job may take (%(default)s)")
    parser.add_argument("--why", action="store_true", help="tell our algorithms, too")
    parser.add_argument("--check", action="store_true", help="exit 1 beyond the limits")
    args = parser.parse_args()
    try:
        args.layouts = [Layout.of(text) for text in args.layouts.split(",")]
        args.lengths = [length(text) for text in args.sizes.split(",")]
        per_second(args.rate)
        for collective in args.collectives.split(","):
            args.layouts[0].crossing(collective, 1)
    except ValueError as e:
        parser.error(str(e))
    if unknown := set(args.mpis.split(",")) - set(MPIS):
        parser.error(f"--mpis: {', '.join(sorted(unknown))}: known are {', '.join(MPIS)}")
    return args


def main() -> int:
    """Measure and print; 1 with --check if something is beyond the limits, 77 if there can be no hosts here."""
    args = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts are removed on the way out
    beyond: list[str] = []
    try:
        made = Hosts(max(len(layout.ranks_on) for layout in args.layouts), args.rate)
    except RuntimeError as e:
        print(f"skipped: {e}")
        return 77
    with made as hosts:
        print(heading(args.mpis.split(",")))
        for layout in args.layouts:
            for case in measure(hosts, layout, args):
                print(case.line(), *([f"  {case.algorithm}"] if args.why else []), sep="\n", flush=True)
                beyond += case.beyond()
    print(*(beyond or ["nothing is beyond the limits"]), sep="\n")
    return int(args.check and bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
