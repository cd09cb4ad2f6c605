"""Prints tables like the OSU Micro-Benchmarks, so that scripts that parse OMB's tables read these. No MPI needed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .. import __version__
from .options import TYPES
from .programs import Program

__all__ = ["Column", "columns", "head", "row"]

SIZE, FIELD, COUNT = 10, 18, 12  # characters


class Column(NamedTuple):
    """A column: the name of its value, its title, its width and its format."""

    key: str
    title: str
    width: int = FIELD
    form: str = ".2f"


def columns(program: Program, args: argparse.Namespace) -> list[Column]:
    """The columns after the size; times are in us."""
    if program.form == "mbw_mr":
        made = [Column("bandwidth", "MB/s"), Column("rate", "Messages/s")]
    elif program.streams:
        made = [Column("bandwidth", "Bandwidth (MB/s)")]
    elif args.nccl:
        made = _nccl()
    elif program.form == "start":
        made = _overlap(args.full)
    else:
        made = [Column("avg", "Avg Latency(us)")]
        if args.full:
            made += [Column("min", "Min Latency(us)"), Column("max", "Max Latency(us)")]
            made += [Column("iterations", "Iterations", COUNT, "d")]
    if args.validation:
        made.append(Column("validation", "Validation", FIELD, "s"))
    tail = "Tail BW(MB/s)" if program.streams else "Tail Lat(us)"
    made += [Column(f"p{p:g}", f"P{p:g} {tail}") for p in args.tail_lat or []]
    if args.bw:
        made += [Column("algbw", "algbw(GB/s)"), Column("busbw", "busbw(GB/s)")]
    return made


def _nccl() -> list[Column]:
    """The columns of nccl-tests, out of place and in place."""
    titles = {"avg": "time(us)", "algbw": "algbw(GB/s)", "busbw": "busbw(GB/s)"}
    return [Column(f"{key}{end}", f"{place} {title}", 22) for end, place in (("", "out"), ("_in_place", "in-place"))
            for key, title in titles.items()]  # fmt: skip


def _overlap(full: bool) -> list[Column]:
    made = [Column("overall", "Overall(us)"), Column("compute", "Compute(us)")]
    if full:
        made += [Column("init", "Coll Init(us)"), Column("test", "MPI_Test(us)"), Column("wait", "MPI_Wait(us)")]
    made.append(Column("avg", "Pure Comm.(us)"))
    if full:
        made += [Column("min", "Min Comm.(us)"), Column("max", "Max Comm.(us)")]
    return [*made, Column("overlap", "Overlap(%)")]


def head(
    program: Program, type_name: str, notes: Sequence[str], shown: Sequence[Column], title: str = "collectives"
) -> str:
    """The head of a table: an empty line, the title, comments, and the names of the columns.

    ``title="osu"`` makes a title that scripts for OMB find, and a comment that says whose table it is.
    """
    lines = ["", f"# OSU-format collectives {program.title} Test v{__version__}"]
    if title == "osu":
        lines[1:] = [f"# OSU {program.title} Test v{__version__}", f"# By collectives {__version__}, not by OMB."]
    if program.sized:
        label = type_name.upper() if type_name.startswith("mpi_") else TYPES[type_name]
        lines.append(f"# Datatype: {label}.")
    lines += [f"# {note}" for note in notes]
    if not shown:
        return "\n".join(lines)
    if program.sized:
        names = "# Size".ljust(SIZE) + shown[0].title.rjust(shown[0].width)
    else:
        names = "# " + shown[0].title.rjust(shown[0].width - 3)
    return "\n".join([*lines, names + "".join(c.title.rjust(c.width) for c in shown[1:])])


def row(program: Program, nbytes: int, values: Mapping[str, float | int | str], shown: Sequence[Column]) -> str:
    """One row: the size and the values; a barrier has no size, and its first column is one character narrower."""
    cells = [format(values[c.key], f">{c.width}{c.form}") for c in shown]
    if program.sized:
        return f"{nbytes:<{SIZE}d}" + "".join(cells)
    return "".join([format(values[shown[0].key], f">{shown[0].width - 1}{shown[0].form}"), *cells[1:]])
