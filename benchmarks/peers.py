"""Compares our collectives with those of MPICH, Open MPI and Intel MPI: float32, through Python, in one run.

Without --collective, the all-reduce, also of torch/Gloo:

    python benchmarks/peers.py                         2 ranks, out of place, one buffer; private and heap arrays
    python benchmarks/peers.py --ranks 2,4 --check     exit 1 when a target is missed or a contestant is missing
    python benchmarks/peers.py --full --json FILE      every mode, every power of two
    python benchmarks/peers.py --program               also an unchanged mpi4py program on our library
    python benchmarks/peers.py --before TREE --check   ours beside another built tree of it, and beside --peers if given

With --collective, several collectives, in fewer rounds and shorter batches, with a summary:

    python benchmarks/peers.py --collective all --check
    python benchmarks/peers.py --collective bcast,alltoallv --sizes 8,1Mi
    python benchmarks/peers.py --collective nonblocking                 iallreduce, ...: started and waited for at once
    python benchmarks/peers.py --collective persistent                  allreduce_persistent, ...: Start, Wait

Each contestant is a job that is started once and sleeps between its turns. In every round the contestants take turns
at each size, in an order drawn for that round and size: a warm-up, a barrier, a batch of calls of at least --batch ms.
The time of a batch is the mean time of a call, the largest over the ranks. A ratio is our time divided by that of the
best peer, which has the lowest median at that size. Ratios are taken round by round. Shown are their median, and the
95 % confidence interval of that median.

Several collectives: sizes are those of OSU's benchmarks, a rank's block if the collective moves blocks, else the
vector. Rank 0 is the root. The vector forms have equal counts, as [array, (counts, displacements), MPI.FLOAT]. A
barrier of the same library ends a batch and is part of its time, since a root may be ahead of the others. Calls that
our library hands over to the MPI library are listed apart, with the reason.

A peer is left out from some size on ("slow") if its call takes more than a second, or would take a third of --limit
judging by a smaller size. A peer that gives no answer within --limit seconds is ended ("missing"). Both are named at
the end.

ompi, mpich, impi: the MPIs from PyPI through mpi4py; /m and /s: mpi4py's thread levels multiple and single. gloo:
torch.distributed, in place; out of place is a copy first. Our library runs at mpi4py's default level, multiple, on
--ours-on. Peers always have private arrays. The number of rotating buffers is such that all ranks' arrays together fill
the last-level cache twice (at least two pairs). Arrays begin on a page. Ordinary arrays are allocated one by one, and
anew for each batch, so that no contestant profits from the place of its arrays.

The memory limit is the least time of an all-reduce if all arrays are shared: a rank reads its part of p inputs, s bytes
in all, and writes it to p outputs, s bytes in all. The limit is measured in the same rounds by passes that move as many
bytes on all ranks at once, without any waiting: NumPy's copy, the sum of two arrays of 2s/3 bytes into a third (triad),
and our kernel from p inputs to p outputs (fold). The fastest pass is the limit.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _peers_jobs as jobs
import _peers_report as report
import _peers_survey as survey
from _peers_collectives import FORMS, NAMES
from _peers_run import Run

from collectives.files import write_json
from collectives.launch.usage import file_to_write
from collectives.system import machine

KINDS = dict(zip(("all", "nonblocking", "persistent"), FORMS, strict=True))
QUICK = "8,64,1Ki,16Ki,64Ki,256Ki,1Mi,4Mi,16Mi,64Mi"
SURVEY = "8,64,1Ki,16Ki,256Ki,1Mi,4Mi,16Mi"
FULL = ",".join(str(8 << i) for i in range(24))


def main() -> int:
    """Measure and print; returns the exit code. With --check, 1 if a target is missed; 1 also if ours does not run."""
    args = arguments()
    described = machine.describe()
    print_machine(described)
    runs = [Run(args, ranks) for ranks in args.ranks]
    for run in runs:
        try:
            run.measure()
        finally:
            run.stop()
    goals = print_survey(runs) if args.survey else print_results(runs)
    print_absent(runs)
    if args.json:
        content = {"machine": described, "rounds": args.rounds, "batch_ms": args.batch, **everything(runs, goals)}
        write_json(args.json, content)
    bad = any(run.missing for run in runs) or any(goal.verdict != "PASS" for goal in goals)
    return 1 if args.check and bad or any(run.jobs["ours"].failure for run in runs) else 0


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--collective", type=listed, default=["allreduce"], help="names, or all, nonblocking, persistent (allreduce)"
    )
    parser.add_argument("--ranks", type=listed_numbers, help="numbers of ranks (2)")
    parser.add_argument("--sizes", type=listed_sizes, help=f"bytes ({QUICK}; of several collectives {SURVEY})")
    parser.add_argument("--rounds", type=int, help="rounds (20; of several collectives 10)")
    parser.add_argument("--buffers", type=listed, help="ours: private,heap (both; of several private)")
    parser.add_argument("--place", type=listed, help="where results go: out,in (out)")
    parser.add_argument("--reuse", type=listed, help="buffers of a batch: one,rotating (one)")
    parser.add_argument(
        "--peers", type=listed, help="other libraries: openmpi,mpich,impi,gloo (all; of several collectives the MPIs)"
    )
    parser.add_argument("--before", type=Path, metavar="TREE", help="another tree of our library, built in place")
    parser.add_argument(
        "--threads", type=listed, default=["multiple", "single"], help="thread levels of mpi4py: multiple,single (both)"
    )
    parser.add_argument("--ours-on", choices=jobs.MPIS, default="openmpi", help="MPI under ours (%(default)s)")
    parser.add_argument("--torch", action="store_true", help="ours through torch.distributed, in private tensors")
    parser.add_argument("--program", action="store_true", help="also an unchanged mpi4py program on ours")
    parser.add_argument("--full", action="store_true", help="2 and 4 ranks, all modes, every power of two")
    parser.add_argument("--batch", type=float, help="ms of a batch (5; of several collectives 2)")
    parser.add_argument("--limit", type=float, default=60, help="seconds that a turn may take (%(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the order of turns (%(default)s)")
    parser.add_argument("--json", type=file_to_write, help="write everything there")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    args = parser.parse_args()
    if len(args.collective) > 1 and args.collective[0] in KINDS:
        parser.error(f"--collective {args.collective[0]}: that is every one, so name no others")
    complete(args)
    peers = [*jobs.MPIS] if args.survey else [*jobs.MPIS, "gloo"]
    for given, known in (
        (args.buffers, ["private", "heap"]), (args.place, ["out"] if args.survey else ["out", "in"]),
        (args.reuse, ["one", "rotating"]), (args.peers, peers), (args.threads, ["multiple", "single"]),
        (args.collective, [form.format(name) for form in FORMS for name in NAMES]),
    ):  # fmt: skip
        if unknown := [word for word in given if word not in known]:
            parser.error(f"{unknown[0]}: not one of {', '.join(known)}")
    if args.torch and (args.survey or args.program or args.buffers != ["private"]):
        parser.error("--torch: the all-reduce of private tensors only")
    if args.rounds < 1 or min(args.ranks) < 2 or args.batch <= 0 or args.limit <= 0:
        parser.error("at least 1 round and 2 ranks, and positive times")
    return args


def complete(args: argparse.Namespace) -> None:
    """Fill in the defaults of options that were not given."""
    if args.collective[0] in KINDS:
        args.collective = [KINDS[args.collective[0]].format(name) for name in NAMES]
    args.survey = args.collective != ["allreduce"]
    several = args.survey
    args.ranks = args.ranks or ([2, 4] if args.full else [2])
    args.sizes = args.sizes or listed_sizes(FULL if args.full else SURVEY if several else QUICK)
    args.buffers = args.buffers or (["private"] if several or args.torch else ["private", "heap"])
    args.place = args.place or (["out", "in"] if args.full and not several else ["out"])
    args.reuse = args.reuse or (["one", "rotating"] if args.full else ["one"])
    args.peers = args.peers or ([] if args.before else [*jobs.MPIS] if several else [*jobs.MPIS, "gloo"])
    args.rounds = (10 if several else 20) if args.rounds is None else args.rounds
    args.batch = (2 if several else 5) if args.batch is None else args.batch


def listed(text: str) -> list[str]:
    """Words between commas."""
    return [word.strip() for word in text.split(",")]


def listed_numbers(text: str) -> list[int]:
    """Numbers between commas."""
    return [int(word) for word in listed(text)]


def listed_sizes(text: str) -> list[int]:
    """Sizes between commas, ascending."""
    return sorted({report.parse_size(word) for word in listed(text)})


def print_machine(described: dict[str, Any]) -> None:
    """The machine and the software, as lines of text."""
    caches = ", ".join(f"{level} {size >> 10} KiB" for level, size in described["caches"].items())
    load = f"load {described['load'][0]:.1f}"
    print(f"{described['cpu']}, {described['cores']} cores, {caches}; {described['system']}; {load}")
    print("float32 SUM through Python; ranks are placed as each mpiexec does by default")


def print_results(runs: Sequence[Run]) -> list[report.Target]:
    """Tables, then the memory limit and the targets."""
    tables = [table for run in runs for table in run.tables()]
    for table in tables:
        print("", *table.lines(), *report.limit_lines(table, report.LIMIT_SIZE), sep="\n")
    goals = []
    for table in tables:
        if found := report.targets(table):
            print("", f"targets: {table.title()}", *found, sep="\n")
            goals += found
    return goals


def print_survey(runs: Sequence[Run]) -> list[report.Target]:
    """A table for each collective, then the summary and the targets."""
    goals = []
    tables = [table for run in runs for table in run.tables()]
    for where, of_all in itertools.groupby(sorted(tables, key=survey.conditions), survey.conditions):
        alike = list(of_all)
        for table in alike:
            print("", f"{table.mode.collective}, {where}: us, medians of {table.rounds} rounds", sep="\n")
            print(*table.medians(), sep="\n")
        found = survey.targets(alike)
        print("", f"summary: {where}", *survey.lines(alike), "", f"targets: {where}", *found, sep="\n")
        goals += found
    return goals


def print_absent(runs: Sequence[Run]) -> None:
    """Contestants that were left out or are missing."""
    for title, kind in (("too slow for the rounds", "slow"), ("missing", "missing")):
        if names := [name for run in runs for name in getattr(run, kind)]:
            print("", title, *names, sep="\n")


def everything(runs: Sequence[Run], goals: Sequence[report.Target]) -> dict[str, list]:
    """All results, for JSON."""
    return {
        "contestants": [job for run in runs for job in run.described],
        "missing": [name for run in runs for name in run.missing],
        "slow": [name for run in runs for name in run.slow],
        "targets": [goal._asdict() | {"verdict": goal.verdict} for goal in goals],
        "results": [record for run in runs for record in run.records()],
    }


if __name__ == "__main__":
    sys.exit(main())
