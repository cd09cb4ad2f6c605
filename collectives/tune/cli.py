"""The command ``tune``: measure and write the selection table; check, merge and export tables."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

from ..files import locked, replacing, say_where
from ..launch import usage
from ..launch.run import as_a_whole
from ..schedules import registry
from ..selection import table
from ..selection.policy import DEFAULT

__all__ = ["add_arguments", "main"]

DESCRIPTION = """\
Measure every algorithm on the ranks of an MPI job and write a table by which the library chooses from then on:
COLLECTIVES_TUNING=tuning.json. A default gives way only to what was measured to be faster with confidence."""
EPILOG = """\
examples:
  mpiexec -n 2 python -m collectives tune -o tuning.json                      a few minutes
  mpiexec -n 8 python -m collectives tune --ranks 2,4,8 --minutes 10          for communicators of 2, 4 and 8 ranks
  mpiexec -n 2 python -m collectives tune --check tuning.json                 is the choice right, and are the models?
  python -m collectives tune --merge old.json new.json -o all.json            of what both have the later one's counts
  python -m collectives tune --export tuning.json -o rules.conf               for Open MPI's coll_tuned (.json: of 6.0)
Entries of -o for other machines, MPIs and layouts stay. The exit code of --check is 1 where the tuned choice takes more
than 1.1 times the best, is slower than the default, or the models' median error is above 20 %."""
SMALLEST = 8
OUTPUT = "tuning.json"  # of what is measured
_OF_MEASURING = "collectives", "ranks", "max_size", "minutes", "without", "mpi"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``tune``."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", metavar="TABLE", help="measure how good the choices of a table are")
    what.add_argument("--merge", nargs="+", metavar="TABLE", help="write the entries of several tables to -o")
    what.add_argument("--export", metavar="TABLE", help="write rules for Open MPI's coll_tuned to -o")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help=f"file to write ({OUTPUT}; --merge and --export have no default)"
    )
    parser.add_argument("--collectives", metavar="NAMES", default=",".join(DEFAULT), help="only these (default: all)")
    parser.add_argument(
        "--ranks", type=usage.sizes, metavar="P", help="numbers of ranks to tune, e.g. 2,4,8 (default: all ranks)"
    )
    parser.add_argument(
        "--max-size", type=usage.number_of_bytes, default=4 << 20, metavar="BYTES", help="longest vector (4MiB)"
    )
    parser.add_argument("--minutes", type=_minutes, default=4.0, metavar="M", help="most minutes to take (4)")
    parser.add_argument("--without", default=[], type=_names, metavar="NAMES", help="algorithms to leave out, e.g. shm")
    parser.add_argument(
        "--mpi", choices=["none", "moves", "all"], default="moves",
        help="collectives that the MPI library's own may serve: none, those that only move data (default), or all",
    )  # fmt: skip
    parser.add_argument(
        "--only", default="", metavar="TEXT",
        help="with --export: entries whose MPI and machine have it in them, as in 'Open MPI 5.0, AMD EPYC, 96 cores'",
    )  # fmt: skip
    parser.add_argument(
        "--json", metavar="FILE", help="with --check of one number of ranks: write all figures there, as JSON"
    )


def main(args: argparse.Namespace) -> int:
    """Run the command; returns its exit code. UsageError for wrong arguments."""
    _check_mode(args)
    if args.merge is not None or args.export is not None:
        return _offline(args)
    names = _names(args.collectives)
    _check_names("--collectives", names, DEFAULT)
    if not names:
        raise usage.UsageError("--collectives: name at least one")
    _check_names("--without", args.without, sorted({name for kind in DEFAULT for name in registry.algorithms(kind)}))
    if args.max_size < SMALLEST:
        raise usage.UsageError(f"--max-size: {args.max_size} is below the smallest size, {SMALLEST} bytes")
    from .job import run

    args.output = OUTPUT if args.output is None else args.output
    sizes = [1 << k for k in range(3, args.max_size.bit_length())]
    return as_a_whole(lambda: run(args, names, sizes))


def _check_mode(args: argparse.Namespace) -> None:
    """UsageError for an option that would have no effect, one that is missing, and --json of several checks."""
    mode = next((name for name in ("check", "merge", "export") if getattr(args, name) is not None), None)
    where = "without --check" if mode is None else f"with --{mode}"
    idle = {None: ("json", "only"), "check": ("output", "only"), "merge": (*_OF_MEASURING, "json", "only")}
    if option := usage.changed(args, idle.get(mode, (*_OF_MEASURING, "json"))):
        raise usage.UsageError(f"{option} has no effect {where}")
    if mode in ("merge", "export") and args.output is None:
        raise usage.UsageError(f"--{mode} needs -o FILE")
    if args.json and args.ranks and len(args.ranks) > 1:
        raise usage.UsageError("--json keeps the figures of one number of ranks, and --ranks names several")


def _check_names(option: str, names: Collection[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise usage.UsageError(f"{option}: {name!r} is none of {', '.join(known)}")


def _offline(args: argparse.Namespace) -> int:
    """Merge or export tables, for which neither MPI nor other ranks are needed."""
    with usage.refused():
        if args.merge:
            with locked(args.output):  # which may be one of the tables
                table.save(table.merge([table.load(path) for path in args.merge]), args.output)
        else:
            _export(table.load(args.export), args.output, args.only)
    say_where(args.output)
    return 0


def _export(exported: table.Table, output: str, text: str) -> None:
    """Write rules for Open MPI from entries that name ``text``; ValueError if these do not tell them.

    ValueError also if ``output`` is the table itself, which cannot be had back from rules.
    """
    from . import openmpi

    if os.path.exists(output) and os.path.samefile(output, exported.path):
        raise ValueError(f"-o {output}: --export would replace the table by rules for Open MPI; name another file")
    found = openmpi.made(openmpi.only(exported, text))
    rules = openmpi.in_json(found) if output.endswith(".json") else openmpi.classic(found)
    with replacing(output) as file:
        file.write(rules)
    if why := openmpi.missing(found):
        print(f"{output}: {why}", file=sys.stderr, flush=True)


def _minutes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of minutes above 0")
    return value


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
