"""``python -m collectives trace``: shows a timeline as a table or as a picture."""

from __future__ import annotations

import argparse
import collections
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..files import say_where
from . import perfetto
from .timeline import Part, part_files

__all__ = ["Row", "add_arguments", "main", "rows", "table"]

Event = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``trace``."""
    parser.add_argument("file", help="what COLLECTIVES_TRACE or comm.trace wrote, or would have written")
    parser.add_argument("--svg", metavar="FILE", help="draw the timeline there (.svg, .png or .pdf); needs matplotlib")
    parser.add_argument(
        "--window", type=_window, metavar="FROM:TO", help="draw only this time, in ms from the begin of the timeline"
    )
    parser.add_argument("--title", default="", help="title of the picture")
    parser.epilog = """\
A line for each collective at each place of the program, the longest first. 'total' is the time of all ranks together,
'mean' that of a call on a rank; 'wait' the share of it that went by until the others had come: all of them, the root,
or in scans the ranks before. 'straggler' is the rank that the others waited for most, all calls
together; 'last in' is the number of calls in which it came last. The longest wait for it was taken in each of these:
'median' and 'most' are the median and the maximum.
Where ranks failed, or MPI ended before they could tell each other, they have left parts, FILE.rankN.part: if one is
newer than the file, these are put together first. The file itself is for ui.perfetto.dev."""


def main(args: argparse.Namespace) -> int:
    """Print the table, or draw the picture; returns 2 if there is no timeline, or for an option without effect."""
    if args.svg is None and (args.window is not None or args.title):
        option = "--title" if args.window is None else "--window"
        print(f"trace: error: {option} has no effect without --svg", file=sys.stderr, flush=True)
        return 2
    try:
        _put_together(args.file)
        events, about = perfetto.read(args.file)
        if args.svg is not None:
            from . import picture

            picture.draw(events, about, args.svg, args.window, args.title)
            say_where(args.svg)
        else:
            print(table(events, about))
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError) as error:
        print(f"trace: error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def _window(text: str) -> tuple[float, float]:
    try:
        begin, end = map(float, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM:TO, two numbers of ms") from None
    if not 0 <= begin < end:
        raise argparse.ArgumentTypeError(f"{text!r}: the window ends before it begins")
    return begin, end


def _put_together(path: str) -> None:
    """Write the file from the parts that ranks of the last run have saved, unless the file is newer than all of them.

    FileNotFoundError if there is neither the file nor a part.
    """
    there, files = os.path.exists(path), sorted(part_files(path), key=_written)
    if not there and not files:
        raise FileNotFoundError(f"there is neither {path} nor a part of it, {path}.rankN.part")
    if not files or (there and _written(files[-1]) <= _written(path)):
        return
    parts, older = _last_run(files)
    perfetto.write(path, parts)
    told = f"put {path} together from the parts of {len(parts)} of {parts[0].about['ranks']} ranks"
    if there:
        told += ", which are newer than the file that was there"
    if older:
        told += f"; left out those of an older run: {', '.join(sorted(older))}"
    print(told, file=sys.stderr)


def _last_run(files: Sequence[Path]) -> tuple[list[Part], list[str]]:
    """The parts of the last run, and names of others, from ``files`` in the order in which they were written.

    ValueError if one that was written after the first of these cannot be read; an older one need not be.
    """
    parts: list[Part] = []
    others: list[str] = []
    damaged: ValueError | None = None
    for file in reversed(files):
        try:
            part = Part.load(file)
        except ValueError as error:
            if not parts:
                raise
            damaged = damaged or error
            others.append(f"{file.name} (damaged)")
            continue
        if parts and part.about["zero"] != parts[0].about["zero"]:
            others.append(file.name)
        elif damaged is not None:
            raise damaged
        else:
            parts.insert(0, part)
    return parts, others


def _written(path: str | os.PathLike[str]) -> int:
    """When a file was written, in ns."""
    return os.stat(path).st_mtime_ns


@dataclass
class Row:
    """One collective at one place of the program. Times are in us, summed over all ranks; ``late`` has, for each rank
    that was the last in some calls, the time that others waited for it in each of these calls."""

    name: str
    algorithm: str
    caller: str
    parts: int = 0
    nbytes: int = 0
    total: float = 0.0
    wait: float = 0.0
    numbers: set[Any] = field(default_factory=set)
    late: dict[int, list[float]] = field(default_factory=lambda: collections.defaultdict(list))

    @property
    def calls(self) -> int:
        """Number of calls, each counted once for all ranks."""
        return len(self.numbers)

    @property
    def mean(self) -> float:
        """Mean time of a call on a rank, in us."""
        return self.total / self.parts

    @property
    def wait_share(self) -> float:
        """The share of the time that was spent waiting."""
        return self.wait / self.total if self.total else 0.0

    @property
    def straggler(self) -> tuple[int, list[float]] | None:
        """The rank that others waited for longest, and the times in us for each call; None if nobody waited."""
        return max(self.late.items(), key=lambda item: sum(item[1])) if self.late else None


def rows(events: Iterable[Event]) -> list[Row]:
    """One row for each collective, form, algorithm and place, the longest total time first."""
    found: dict[Any, Row] = {}
    for event in events:
        args = event.get("args", {})
        if event["ph"] not in "Xb" or "work_us" not in args:
            continue
        name = {"non-blocking": "I", "persistent": "Start "}.get(args["form"], "") + args["collective"]
        key = name, args["algorithm"], args["caller"]
        row = found.setdefault(key, Row(*key))
        row.parts += 1
        row.nbytes += args["bytes"]
        row.total += args["wait_us"] + args["work_us"]
        row.wait += args["wait_us"]
        row.numbers.add((args["communicator"], args.get("request"), args["call"]))
        if "late_us" in args:
            row.late[event["pid"]].append(args["late_us"])
    return sorted(found.values(), key=lambda row: -row.total)


HEAD = (
    "collective", "algorithm", "calls", "bytes", "total", "mean", "wait", "straggler", "last in", "median", "most",
    "caller",
)  # fmt: skip
LEFT = 0, 1, 11


def table(events: Iterable[Event], about: dict[str, Any]) -> str:
    """The timeline as a table of text."""
    lines: list[tuple[str, ...]] = [HEAD]
    for row in rows(events):
        straggler = row.straggler
        last: tuple[str, ...] = ("-", "", "", "")
        if straggler is not None:
            rank, late = straggler
            last = (f"rank {rank}", str(len(late)), _time(statistics.median(late)), _time(max(late)))
        lines.append((
            row.name, row.algorithm, str(row.calls), _bytes(row.nbytes / row.parts), _time(row.total), _time(row.mean),
            f"{row.wait_share:.0%}", *last, _relative(row.caller),
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(_cell, line, widths, range(len(line)))).rstrip() for line in lines]
    return "\n".join([*_account(about), "", *text])


def _cell(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in LEFT else text.rjust(width)


def _account(about: dict[str, Any]) -> list[str]:
    """A description of the run, and of what is missing in the file."""
    hosts = len({rank["host"] for rank in about["rank"]})
    told = [f"{about['ranks']} ranks on {hosts} host{'s' if hosts > 1 else ''}, {about['seconds']:.3f} s"]
    errors = [rank["clock_error_ns"] for rank in about["rank"] if "clock_error_ns" in rank]
    if errors:
        told.append(f"clocks compared by messages, to {max(errors) / 1000:.1f} us at worst")
    if any("not compared" in rank["clock"] for rank in about["rank"]):
        told.append("clocks not compared: these ranks did not begin together")
    if about["missing_ranks"]:
        told.append(f"no account of rank {', '.join(map(str, about['missing_ranks']))}")
    for rank in about["rank"]:
        if rank["dropped"]:
            told.append(f"rank {rank['rank']} had no room for its last {rank['dropped']} calls and spans")
    return told


def _time(us: float) -> str:
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}" if us < 1000 * factor else f"{us / factor:.0f} {unit}"
    return f"{us:.3g} us"


def _bytes(n: float) -> str:
    for power, unit in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if n >= 1024**power:
            return f"{n / 1024**power:.3g}{unit}" if n / 1024**power < 1000 else f"{n / 1024**power:.0f}{unit}"
    return f"{n:.0f}"


def _relative(caller: str) -> str:
    """File and line of the caller, without the current directory."""
    place = caller.partition(" ")[0] if " " not in caller.rpartition(":")[0] else caller.rpartition(" ")[0]
    return place.removeprefix(os.getcwd() + os.sep)
