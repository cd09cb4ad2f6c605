"""Options of the benchmark programs: those of the OSU Micro-Benchmarks, and further ones. Imports without MPI."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from .. import __version__
from ..launch.usage import UsageError, number_of_bytes, sizes
from ..schedules import registry
from .programs import Program

__all__ = ["TYPES", "add_options", "check", "iterations", "message_sizes"]

LARGE = 8192  # bytes; longer messages are repeated less often
GRAPHS = ("tty", "png", "pdf")
MOST_DIMENSIONS = 32  # of a torus, as of arrays in NumPy 1
#: Names of the element types in the tables, and in NumPy; the first three are OMB's.
TYPES = {
    "mpi_char": "int8", "mpi_int": "int32", "mpi_float": "float32", "mpi_double": "float64", "float16": "float16",
    "bfloat16": "bfloat16",
}  # fmt: skip
#: By form: (iterations, iterations of long messages, warm-up calls, warm-up calls of long messages).
_LATENCY, _STREAM = (10_000, 1000, 100, 10), (100, 20, 10, 2)
REPEATS = {"latency": _LATENCY, "multi_lat": _LATENCY, "bw": _STREAM, "bibw": _STREAM, "mbw_mr": _STREAM}
USUAL = (1000, 100, 100, 10)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all programs; :func:`check` refuses those that a program does not use."""
    add = parser.add_argument
    add("-v", "--version", action="version", version=f"collectives {__version__}")
    add("-f", "--full", action="store_true", help="also minimum and maximum over the ranks, and iterations")
    add("-m", "--message-size", type=_range, metavar="[MIN:]MAX",
        help="bytes of the messages, e.g. 4:1MiB (default 1:1MiB; 1:4MiB between two ranks)")  # fmt: skip
    add("-i", "--iterations", type=_count(1), metavar="N", help=f"timed calls per size (default {_repeats(0)})")
    add("-x", "--warmup", type=_count(0), metavar="N", help=f"calls before those (default {_repeats(2)})")
    add("-M", "--mem-limit", type=number_of_bytes, default=512 << 20, metavar="BYTES",
        help="most memory for buffers of a process; sizes that need more are left out (default 512MiB)")  # fmt: skip
    add(
        "-c",
        "--validation",
        action="store_true",
        help="compare results of calls that are not timed, bit by bit; exit with 1 if one is wrong",
    )
    add("-u", "--validation-warmup", type=_count(0), default=5, metavar="N",
        help="calls that -c compares (default 5)")  # fmt: skip
    add("-T", "--type", type=_types, default=["mpi_char"], metavar="TYPE",
        help=f"element type: all (OMB's three), or the beginning of {', '.join(TYPES)} (default mpi_char)")  # fmt: skip
    add("-l", "--in-place", action="store_true", help="reduce or move in place, with MPI.IN_PLACE")
    add("-z", "--tail-lat", type=_percentiles, nargs="?", const=[50.0, 90.0, 99.0], metavar="LIST",
        help="percentiles over all samples of all ranks (default 50,90,99), of bandwidths over windows")  # fmt: skip
    add("-G", "--graph", type=_graphs, default=[], metavar="LIST",
        help="draw the results: tty, png, pdf; files are named after the program")  # fmt: skip
    add("-d", "--accelerator", type=_accelerator, metavar="KIND", help="buffers of a device (not in this version)")
    add("-k", "--root-rank", type=_root, default=0, metavar="fixed:R|rotate",
        help="root of a rooted collective: one rank (default fixed:0), or all in turn")  # fmt: skip
    add("-t", "--test-calls", type=_count(0), metavar="N", help="non-blocking: MPI_Test calls while computing")
    add("-W", "--window-size", type=_count(1), metavar="N",
        help="bw, bibw, mbw_mr: messages under way at a time (default 64)")  # fmt: skip
    add("-N", "--neighborhood", type=_torus, metavar="cart:D:R",
        help="neighbours: ranks up to R away along D dimensions of a torus (default cart:1:1)")  # fmt: skip
    add("buffers", nargs="*", type=_buffers, metavar="H|D", help="two letters: where the buffers are, H for the host")
    ours = parser.add_argument_group("beyond OMB")
    add = ours.add_argument
    add("--algorithm", metavar="NAME", help="an algorithm of the collective, mpi for the MPI library's own, all for a "
        "table of each (default: the library chooses)")  # fmt: skip
    add("--engine", choices=("c", "python"), help="executor of schedules (default c)")
    add("--ranks", type=sizes, metavar="LIST", help="a table for each number of ranks, e.g. 2,4,8 or 2:8")
    add("--off-cache", action="store_true", help="buffers in turn, so many that no call finds its data in the cache")
    add("--heap", action="store_true", help="arrays of comm.empty, which the ranks of a node share")
    add("--bw", action="store_true", help="bandwidths: algbw and busbw as nccl-tests define them")
    add("--nccl", action="store_true", help="as nccl-tests: out of place, then in place, each with algbw and busbw; "
        "at the end the average of busbw")  # fmt: skip
    add("--title", choices=("collectives", "osu"), default="collectives",
        help="osu: a first line that begins '# OSU MPI', for scripts that look for it")  # fmt: skip
    add("--json", metavar="FILE", help="everything that was measured, with the machine described")


def _repeats(first: int) -> str:
    """The numbers of calls from place ``first`` of REPEATS on, of all programs, as text."""
    programs = {USUAL: "", _LATENCY: "latency and multi_lat ", _STREAM: "bw, bibw and mbw_mr "}
    return "; ".join(f"{who}{n[first]}, above {LARGE} B {n[first + 1]}" for n, who in programs.items())


def check(program: Program, args: argparse.Namespace) -> None:
    """UsageError for options that the program does not use, that exclude each other, or that ask for the impossible."""
    single, starts = not program.collective, program.form == "start"
    useless = {
        "--in-place": args.in_place and not program.in_place,
        "--nccl": args.nccl and not (program.in_place and program.form == "call"),
        "--neighborhood": args.neighborhood is not None and not program.on_a_graph,
        "--root-rank": args.root_rank != 0 and not program.rooted,
        "--test-calls": args.test_calls is not None and not starts,
        "--window-size": args.window_size is not None and not program.streams,
        "--tail-lat": args.tail_lat is not None and program.form == "init",
        "--bw": args.bw and (single or starts or not program.sized),
        "--full": args.full and (program.streams or program.form == "init" or args.nccl),
        "--engine": args.engine is not None and not (program.ours and program.form == "call"),
        "--algorithm": args.algorithm is not None and not program.ours,
        "--ranks": args.ranks is not None and single,
        "--heap": args.heap and (not program.ours or program.exchanges),
        "--message-size": args.message_size is not None and not program.sized,
        "--off-cache": args.off_cache and not program.sized,
        "--type": args.type != ["mpi_char"] and not program.sized,
    }
    if single and program.sized:
        useless["--type"] = not all(name.startswith("mpi_") for name in args.type)
    if program.form == "init":
        useless |= {
            "--iterations": args.iterations is not None, "--warmup": args.warmup is not None,
            "--validation": args.validation, "--graph": bool(args.graph),
        }  # fmt: skip
    for option, given in useless.items():
        if given:
            raise UsageError(f"{option}: {program.name} has no use for it")
    if args.nccl and (args.in_place or args.bw):
        raise UsageError("--nccl measures in place and has bandwidths: give neither --in-place nor --bw with it")
    if len(args.buffers) not in (0, 2):
        raise UsageError(f"{' '.join(args.buffers)}: expected two letters, such as H H")
    if args.algorithm == "mpi" and (args.engine or args.heap):
        raise UsageError("--algorithm mpi: the MPI library's own takes neither --engine nor --heap")
    if args.algorithm not in (None, "all"):
        try:
            registry.find(program.collective, args.algorithm)
        except ValueError as error:
            raise UsageError(f"--algorithm: {error}") from None
    sizes = message_sizes(program, args)
    if program.sized and args.message_size and sizes[0] > _longest(program, args):
        raise UsageError(f"--message-size: the least, {sizes[0]} bytes, is above the most, {_longest(program, args)}")
    pictures = [kind for kind in args.graph if kind != "tty"]
    if pictures and sum(nbytes > 0 for nbytes in sizes) < 2:
        raise UsageError(f"--graph {pictures[0]}: a picture needs messages of two sizes or more; tty draws one, too")


def message_sizes(program: Program, args: argparse.Namespace) -> list[int]:
    """Bytes of the messages, ascending: from the smallest to the largest by doubling."""
    if not program.sized:
        return [0]
    least = (args.message_size or (None, None))[0]
    found = [1 if least is None else least]
    while max(found[-1] * 2, 1) <= _longest(program, args):
        found.append(max(found[-1] * 2, 1))
    return found


def _longest(program: Program, args: argparse.Namespace) -> int:
    most: int | None = (args.message_size or (None, None))[1]
    return (1 << 20 if program.collective else 4 << 20) if most is None else most


def iterations(program: Program, args: argparse.Namespace, nbytes: int) -> tuple[int, int]:
    """The number of timed calls, and of warm-up calls before them, for messages of ``nbytes``."""
    usual = REPEATS.get(program.form, USUAL)
    large = nbytes > LARGE
    timed = usual[large] if args.iterations is None else args.iterations
    return timed, usual[2 + large] if args.warmup is None else args.warmup


# --- values -------------------------------------------------------------------------------------------------------


def _count(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}: expected at least {least}")
        return value

    return parse


def _range(text: str) -> tuple[int | None, int | None]:
    ends = text.split(":")
    if len(ends) > 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not [MIN:]MAX")
    found = [number_of_bytes(end) if end else None for end in ends]
    low, high = found if len(found) == 2 else (None, found[0])
    if (1 if low is None else low) > (1 << 62 if high is None else high):
        raise argparse.ArgumentTypeError(f"{text!r}: the least is more than the most")
    return low, high


def _types(text: str) -> list[str]:
    word = text.lower()
    if word == "all":
        return list(TYPES)[:3]
    found = [name for name in TYPES if word and name.startswith(word)]
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} begins none of {', '.join(TYPES)}")
    return found[:1]


def _listed(text: str, what: str, parse: Callable[[str], Any]) -> list[Any]:
    try:
        return [parse(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {what}") from None


def _percentiles(text: str) -> list[float]:
    found = _listed(text, "percentiles such as 50,90,99", float)
    if not all(0 <= value <= 100 for value in found):
        raise argparse.ArgumentTypeError(f"{text!r}: percentiles are between 0 and 100")
    return found


def _graphs(text: str) -> list[str]:
    found = text.split(",")
    if not set(found) <= set(GRAPHS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of {', '.join(GRAPHS)}")
    return found


def _root(text: str) -> int | str:
    if text == "rotate":
        return text
    word = text.removeprefix("fixed:")
    if not word.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither fixed:RANK nor rotate")
    return int(word)


def _torus(text: str) -> tuple[int, int]:
    words = text.split(":")
    if len(words) != 3 or words[0] != "cart" or not all(word.isdecimal() and int(word) > 0 for word in words[1:]):
        raise argparse.ArgumentTypeError(f"{text!r} is not cart:DIMENSIONS:RADIUS, such as cart:2:1")
    if int(words[1]) > MOST_DIMENSIONS:
        raise argparse.ArgumentTypeError(f"{text!r} has more than {MOST_DIMENSIONS} dimensions")
    return int(words[1]), int(words[2])


def _buffers(text: str) -> str:
    if text in ("D", "M"):
        raise argparse.ArgumentTypeError(f"{text}: this version moves arrays in host memory only (H)")
    if text != "H":
        raise argparse.ArgumentTypeError(f"{text!r} is neither H nor D")
    return text


def _accelerator(text: str) -> str:
    raise argparse.ArgumentTypeError(f"{text!r}: this version moves arrays in host memory only")
