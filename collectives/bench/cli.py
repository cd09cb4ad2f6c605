"""The command ``python -m collectives bench NAME``, which the scripts ``benchmarks/osu/osu_*.py`` run too."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from ..drawing import require_matplotlib
from ..files import say_where, unwritable
from ..launch import usage
from ..launch.run import as_a_whole
from ..launch.usage import UsageError
from ..system import machine
from . import start
from .options import add_options, check
from .programs import NAMES, Program, find
from .results import Record, content, write

__all__ = ["add_arguments", "main", "script"]

EPILOG = """\
  mpiexec -n 4 python -m collectives bench allreduce
  mpiexec -n 4 python -m collectives bench allreduce --algorithm all -m 8:1MiB --json allreduce.json
  mpiexec -n 8 python -m collectives bench ialltoall --ranks 2,4,8 -t 10
  mpiexec -n 2 python -m collectives bench latency

NAME is a collective; with i before it the non-blocking call, with _persistent after it the persistent one; latency, bw,
bibw, multi_lat, mbw_mr or init. docs/benchmarks.md says how to read the tables."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``bench``."""
    parser.epilog = EPILOG
    parser.add_argument("name", metavar="NAME", choices=NAMES, help="allreduce, iallreduce, allreduce_persistent, ...")
    add_options(parser)


def main(args: argparse.Namespace) -> int:
    """Run a benchmark; returns 0, 1 if a result is wrong or there are too few ranks, 2 if a call is impossible."""
    program = find(args.name)
    check(program, args)
    importlib.import_module("mpi4py")  # if it is missing, the command line says so; it would be a traceback below
    return as_a_whole(lambda: _run(program, args))


def script(name: str, argv: Sequence[str] | None = None) -> int:
    """Run the benchmark ``name`` with the options in ``argv`` (default: sys.argv); returns the exit code."""
    parser = argparse.ArgumentParser(
        description=f"{find(name).title} Test, in the format of the OSU Micro-Benchmarks: see docs/benchmarks.md."
    )
    add_options(parser)
    args = usage.parsed(parser, sys.argv[1:] if argv is None else argv)
    args.name = name
    try:
        return main(args)
    except UsageError as error:
        with usage.quiet_beside_rank_0():
            parser.error(str(error))


def _unwritable(program: Program, args: argparse.Namespace) -> str | None:
    """Why the files cannot be written; None if they can. To be asked on rank 0, which writes them: other hosts may
    lack the folder."""
    pictures = [f"osu_{program.name}.{kind}" for kind in args.graph if kind != "tty"]
    if pictures:
        try:
            require_matplotlib()
        except ImportError as error:
            return str(error)
    return unwritable([*pictures, args.json])


def _run(program: Program, args: argparse.Namespace) -> int:
    if program.form == "init":
        return start.run(program, args)
    from mpi4py import MPI

    from .engine import run
    from .timing import clock_overhead

    world = MPI.COMM_WORLD
    why = world.bcast(_unwritable(program, args) if world.rank == 0 else None)
    error = (2, why) if why is not None else _refusal(program, args, world.size)
    if error is not None:
        if world.rank == 0:
            print(error[1], file=sys.stderr, flush=True)
        return error[0]
    nodes = len(set(world.allgather(machine.node_name())))
    code, records = run(program, args, world)
    if world.rank == 0:
        made = content(program, args, nodes, clock_overhead(), records)
        if args.json:
            write(args.json, made)
            say_where(args.json, "# ")
        _draw(program, args, made)
    return code


def _refusal(program: Program, args: argparse.Namespace, size: int) -> tuple[int, str] | None:
    """Exit code and message if the number of ranks does not suit the options, else None."""
    if program.pairs and not program.many_pairs and size != 2:
        return 1, "This test requires exactly two processes"
    if program.many_pairs and size % 2:
        return 1, "This test requires an even number of processes"
    if size < 2:
        return 1, "This test requires at least two processes"
    for ranks in args.ranks or []:
        if not 2 <= ranks <= size:
            return 2, f"--ranks: {ranks} is not between 2 and the {size} ranks that there are"
    least = min(args.ranks or [size])
    if args.root_rank != "rotate" and args.root_rank >= least:
        return 2, f"--root-rank: {args.root_rank} is not a rank of {least}"
    return None


def _draw(program: Program, args: argparse.Namespace, made: Record) -> None:
    from . import plot

    for kind in args.graph if made["results"] else []:
        if kind == "tty":
            print("\n".join(plot.tty(plot.curves(made))), flush=True)
        else:
            path = f"osu_{program.name}.{kind}"
            try:
                plot.draw([made], path)
            except ValueError as error:  # --type or --mem-limit left out all sizes but one
                print(f"# {path} is not drawn: {error}", flush=True)
            else:
                say_where(path, "# ")
