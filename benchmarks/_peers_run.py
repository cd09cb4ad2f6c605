"""The rounds of ``peers.py``: all contestants take turns, on one number of ranks."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _peers_collectives as collectives
import _peers_jobs as jobs
import _peers_report as report
from _peers_jobs import LIMITS, Contestant, Failure, Job
from _peers_report import LIMIT_SIZE, Mode

from collectives.system import machine

PAGE = 4096
WARM_SECONDS = 1e-3
SLOW_SECONDS = 1.0
LARGE = 64 << 10
OURS = ("ours", "program")
BEFORE = {"private": "before/p", "heap": "before/h", "program": "before/p"}  # columns of the other build

Key = tuple[Mode, int, Contestant]


class Run:
    """All contestants on one number of ranks."""

    def __init__(self, args: argparse.Namespace, ranks: int):
        self.args, self.ranks = args, ranks
        self.modes = [Mode(*mode) for mode in itertools.product(args.place, args.reuse, args.collective)]
        self.temporary = tempfile.TemporaryDirectory(prefix="peers-")
        self.jobs = {job.name: job for job in self.all_jobs(Path(self.temporary.name))}
        self.contestants = self.all_contestants()
        self.quickest: dict[Key, float] = {}  # shortest call so far, in seconds; it sets the length of a batch
        self.seconds: dict[Key, list[float]] = {}
        self.algorithms: dict[Key, tuple[str, str]] = {}  # the algorithm, and why it ran
        self.sitting: dict[tuple[Mode, Contestant], int] = {}  # the size from which on it is left out
        self.missing: list[str] = []
        self.slow: list[str] = []
        self.described: list[dict[str, Any]] = []

    def all_jobs(self, folder: Path) -> Iterator[Job]:
        """Ours first, then every peer."""

        def job(name: str, environment: str, kind: str, level: str = "multiple", **more: Any) -> Job:
            return Job(name, environment, kind, self.ranks, level, folder, self.args.limit, **more)

        ours = ("torch", "torch", "none") if self.args.torch else (self.args.ours_on, "ours")
        yield job("ours", *ours)
        if self.args.before:
            yield job("before", *ours, tree=self.args.before.resolve())
        if self.args.program:
            yield job("program", self.args.ours_on, "program")
        for mpi, level in itertools.product(jobs.MPIS, self.args.threads):
            if mpi in self.args.peers:
                yield job(f"{jobs.MPIS[mpi]}/{level[0]}", mpi, "mpi", level)
        if "gloo" in self.args.peers:
            yield job("gloo", "torch", "gloo", "none")

    def all_contestants(self) -> list[Contestant]:
        """A contestant for each peer, and one of each of our builds for each kind of memory."""
        found = [Contestant(kind, "ours", kind) for kind in self.args.buffers]
        if "before" in self.jobs:
            found += [Contestant(BEFORE[kind], "before", kind) for kind in self.args.buffers]
        found += [Contestant(name, name) for name in self.jobs if name not in ("ours", "before")]
        if "heap" in self.args.buffers and LIMIT_SIZE in self.args.sizes:
            found += [Contestant(name, "ours", limit=name) for name in LIMITS]
        return found

    def measure(self) -> None:
        """Start all jobs, check their results, and run the rounds."""
        self.start()
        for mode, nbytes in self.cells():
            for contestant in self.entrants(mode, nbytes):
                self.attempt(self.try_out, contestant, mode, nbytes)
        for number in range(self.args.rounds):
            progress(f"{self.ranks} ranks: round {number + 1} of {self.args.rounds}")
            for mode, nbytes in self.cells():
                entrants = self.entrants(mode, nbytes)
                random.Random(f"{self.args.seed} {number} {mode} {nbytes}").shuffle(entrants)
                for contestant in entrants:
                    self.attempt(self.turn, contestant, mode, nbytes)
        progress("")

    def sizes(self, mode: Mode) -> list[int]:
        """Bytes of the messages."""
        return collectives.sizes(mode.collective, self.ranks, self.args.sizes)

    def cells(self) -> Iterator[tuple[Mode, int]]:
        """All modes with each of their sizes."""
        return ((mode, nbytes) for mode in self.modes for nbytes in self.sizes(mode))

    def start(self) -> None:
        """Make the environments, start the jobs, and let them allocate their memory."""
        self.check_memory()
        progress(f"{self.ranks} ranks: starting {len(self.jobs)} jobs")
        for job in self.jobs.values():
            try:
                jobs.prepare(job.environment, 1800)
                job.start()
            except Failure as failure:
                job.failure = str(failure)
        for job in self.jobs.values():
            job.join()
            if job.failure:
                self.miss(job.name, job.failure)
            else:
                self.describe(job)
        for contestant in list(self.contestants):
            self.take_memory(contestant)

    def describe(self, job: Job) -> None:
        """Print what a job runs on, and on which cores its ranks may run."""
        hello = job.hellos[0]
        cores = [hello["cores"] for hello in job.hellos]
        placed = f"on cores {' | '.join(','.join(map(str, c)) for c in cores)}"
        bound = placed if any(len(c) < jobs.usable_cores() for c in cores) else "not bound"
        level = "" if hello["level"] == "none" else f", thread level {hello['level']}"
        progress("")
        print(f"{self.ranks} ranks  {job.name:8} {hello['software']['library']}{level}, {bound}", flush=True)
        software = {**hello["software"], "thread_level": hello["level"]}
        self.described.append({"contestant": job.name, "ranks": self.ranks, "software": software, "cores": cores})

    def take_memory(self, contestant: Contestant) -> None:
        """Memory for all sizes of a contestant."""
        job = self.jobs[contestant.job]
        if job.failure:
            return
        without = [hello for hello in job.hellos if contestant.buffers not in hello["buffers"]]
        if without:
            self.contestants.remove(contestant)
            self.miss(f"ours, {contestant.name} arrays", without[0]["why_not"])
            return
        try:
            job.ask("setup", buffers=contestant.buffers, nbytes=self.footprint())
        except Failure as failure:
            self.miss(job.name, str(failure))

    def sets(self, mode: Mode, nbytes: int) -> int:
        """Pairs of arrays of each rank."""
        if mode.reuse == "one":
            return 1
        return max(2, math.ceil(2 * machine.last_level_cache() / (self.ranks * 2 * self.pages(mode, nbytes))))

    def pages(self, mode: Mode, nbytes: int) -> int:
        """Bytes of the pages of the longest array."""
        return max(1, -(-collectives.vector(mode.collective, self.ranks, nbytes) // PAGE)) * PAGE

    def footprint(self) -> int:
        """Bytes of arrays of each rank, at most."""
        return sum({n: 2 * self.sets(mode, n) * self.pages(mode, n) for mode, n in self.cells()}.values())

    def check_memory(self) -> None:
        """Refuse a run that needs too much memory."""
        needed = self.footprint() * self.ranks * (len(self.jobs) + 1)
        if needed > 0.8 * jobs.available_memory():
            sys.exit(f"peers.py: {needed >> 20} MiB of arrays are too much here; give fewer --peers or smaller --sizes")

    def entrants(self, mode: Mode, nbytes: int) -> list[Contestant]:
        """The contestants that take part; also passes over memory if times are compared with them."""
        alive = [c for c in self.contestants if not self.jobs[c.job].failure]
        rested = [c for c in alive if nbytes < self.sitting.get((mode, c), nbytes + 1)]
        return [c for c in rested if not c.limit or nbytes == LIMIT_SIZE]

    def arguments(self, contestant: Contestant, mode: Mode, nbytes: int) -> dict[str, Any]:
        """The call, as a worker expects it."""
        what = {"buffers": contestant.buffers, "collective": mode.collective, "nbytes": nbytes}
        what |= {"sets": self.sets(mode, nbytes), "in_place": mode.place == "in"}
        return what | {"limit": contestant.limit}

    def batch(self, contestant: Contestant, mode: Mode, nbytes: int, calls: int, warm: int) -> float:
        """Seconds of a call of the slowest rank."""
        what = self.arguments(contestant, mode, nbytes)
        return max(self.jobs[contestant.job].ask("measure", calls=calls, warm=warm, closed=self.args.survey, **what))

    def try_out(self, contestant: Contestant, mode: Mode, nbytes: int) -> None:
        """Check the result, and measure how long a call takes."""
        progress(f"{self.ranks} ranks: trying {contestant.name}, {report.size_name(nbytes)}, {mode}")
        what = self.arguments(contestant, mode, nbytes)
        job = self.jobs[contestant.job]
        if (expected := self.expected(contestant, mode, nbytes)) > self.args.limit / 3:
            self.sit_out(contestant, mode, nbytes, expected)
            return
        if not contestant.limit:
            first = max(job.ask("verify", **{name: value for name, value in what.items() if name != "limit"}))
            nbytes_of_all = collectives.vector(mode.collective, self.ranks, nbytes)
            found = job.ask("algorithm", collective=mode.collective, nbytes=nbytes_of_all)[0]
            self.algorithms[mode, nbytes, contestant] = found[0], found[1]
            if first > SLOW_SECONDS and (first := self.batch(contestant, mode, nbytes, 1, 0)) > SLOW_SECONDS:
                self.sit_out(contestant, mode, nbytes, first)
                return
        first = self.batch(contestant, mode, nbytes, 1, 1)
        calls = min(100, math.ceil(WARM_SECONDS / first))
        self.quickest[mode, nbytes, contestant] = self.batch(contestant, mode, nbytes, calls, 0)

    def expected(self, contestant: Contestant, mode: Mode, nbytes: int) -> float:
        """Expected seconds of a call, from the bytes per second of the largest size so far if that was large; else
        0."""
        known = {n: s for (m, n, c), s in self.quickest.items() if (m, c) == (mode, contestant) and n >= LARGE}
        return known[max(known)] * nbytes / max(known) if known else 0.0

    def sit_out(self, contestant: Contestant, mode: Mode, nbytes: int, seconds: float) -> None:
        """Leave a contestant out of the rounds from this size on, because it is too slow. Ours counts as missing
        then."""
        self.sitting[mode, contestant] = nbytes
        what = f"from {report.size_name(nbytes)}, {mode}: a call takes {seconds:.1f} s or so"
        if contestant.job in OURS:
            self.miss(contestant.name, what)
        else:
            self.slow.append(f"{self.ranks} ranks, {contestant.name} {what}")

    def turn(self, contestant: Contestant, mode: Mode, nbytes: int) -> None:
        """Run one batch."""
        key = mode, nbytes, contestant
        calls = max(2, math.ceil(self.args.batch * 1e-3 / self.quickest[key]))
        warm = max(1, math.ceil(WARM_SECONDS / self.quickest[key]))
        seconds = self.batch(contestant, mode, nbytes, calls, warm)
        self.quickest[key] = min(self.quickest[key], seconds)
        self.seconds.setdefault(key, []).append(seconds)

    def attempt(self, step: Callable[..., None], contestant: Contestant, mode: Mode, nbytes: int) -> None:
        """Run a contestant's turn. If it fails, note the failure and go on with the others."""
        if self.jobs[contestant.job].failure:
            return
        try:
            step(contestant, mode, nbytes)
        except Failure as failure:
            self.miss(contestant.job, f"{report.size_name(nbytes)}, {mode}: {failure}")

    def miss(self, name: str, why: str) -> None:
        """Note and print that a contestant is missing."""
        progress("")
        self.missing.append(f"{self.ranks} ranks, {name}: {why}")
        print(f"missing: {self.missing[-1]}", flush=True)

    def stop(self) -> None:
        """End all jobs."""
        for job in self.jobs.values():
            job.stop()
        self.temporary.cleanup()

    def tables(self) -> list[report.Table]:
        """A table for each contestant of ours and each mode."""
        ours = [c for c in self.contestants if c.job in OURS and not c.limit]
        peers = [name for name in self.jobs if name not in (*OURS, "before")]
        cores = jobs.usable_cores()
        return [
            report.Table(
                self.ranks, cores, c.name, mode, self.args.rounds,
                [BEFORE[c.name], *peers] if "before" in self.jobs else peers,
                {nbytes: self.samples(mode, nbytes) for nbytes in self.sizes(mode)}, LIMITS, self.slow_cells(mode),
                *({n: self.algorithms.get((mode, n, c), ("", ""))[i] for n in self.sizes(mode)} for i in range(2)),
            )
            for c, mode in itertools.product(ours, self.modes)
        ]  # fmt: skip

    def slow_cells(self, mode: Mode) -> list[tuple[int, str]]:
        """Sizes and contestants that were left out."""
        sitting = [(c.name, least) for (m, c), least in self.sitting.items() if m == mode]
        return [(nbytes, name) for name, least in sitting for nbytes in self.sizes(mode) if nbytes >= least]

    def samples(self, mode: Mode, nbytes: int) -> dict[str, list[float]]:
        """Seconds by contestant, for those that took part in every round."""
        found = {c.name: self.seconds.get((mode, nbytes, c), []) for c in self.contestants}
        return {name: seconds for name, seconds in found.items() if len(seconds) == self.args.rounds}

    def records(self) -> list[dict[str, Any]]:
        """Everything measured in all rounds, for JSON."""
        return [
            {"ranks": self.ranks, **mode._asdict(), "bytes": nbytes, "contestant": contestant.name,
             "algorithm": self.algorithms.get((mode, nbytes, contestant), ("",))[0],
             "us": [round(s * 1e6, 4) for s in seconds]}
            for (mode, nbytes, contestant), seconds in self.seconds.items() if len(seconds) == self.args.rounds
        ]  # fmt: skip


def progress(text: str) -> None:
    """Show where the run is, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
