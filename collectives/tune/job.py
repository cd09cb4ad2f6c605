"""Tunes, or checks a table, on the ranks of an MPI job, or on the first of them."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import __version__
from ..bench.engine import printer
from ..bench.settings import part
from ..communicator import Communicator
from ..files import locked, replacing, say_where, unwritable
from ..selection.policy import NODE_LIMITS
from ..selection.table import Entry, Table, load, merge, nearest, save
from ..system import machine, mpi_library
from .limits import Doubts, search_limits
from .measure import Bench
from .progress import Progress
from .race import shuffled
from .report import HEADING, Line, as_json, check, summary, told
from .search import SWEEPS, VISITS, Search

__all__ = ["run"]

LIMITS, MODELS = 0.1, 0.5  # share of the time for the node-local engine's limits; and at which models are complete
NOISY = 0.3  # spread of the times of the same call from which on a user is told
GENEROUS = 2.0  # a collective may take this many times its share of the remaining time, since most need less


def run(args: argparse.Namespace, names: Sequence[str], sizes: Sequence[int]) -> int:
    """Tune, or check a table; returns the exit code, which is equal on all ranks."""
    world = MPI.COMM_WORLD
    wrong = world.bcast(_wrong(args, world.size) if world.rank == 0 else None, 0)
    if wrong is not None:
        if world.rank == 0:
            _refuse(wrong)
        return 2
    code = 0
    counts = args.ranks or [world.size]
    for ranks in counts:
        with part(world, ranks) as plain:
            if plain is None:
                continue
            comm = Communicator(plain)
            bench = Bench(comm, frozenset(args.without), args.mpi)
            seconds, core_waits = 60 * args.minutes / len(counts), machine.CoreWaits()
            code = max(code, _measure(args, bench, names, sizes, seconds))
            crowded = machine.busy(MPI.Intracomm(comm).allreduce(core_waits.share(), MPI.MAX))
            if crowded and comm.rank == 0:
                print(crowded, flush=True)
            bench.done()
            comm.Free()
    return world.bcast(code, 0)


def _refuse(why: str) -> None:
    print(f"python -m collectives tune: error: {why}", file=sys.stderr, flush=True)


def _wrong(args: argparse.Namespace, ranks: int) -> str | None:
    """An error that would make the job fail at its end, found before anything is measured; None if there is none."""
    if ranks < 2:
        return "there is nothing to measure on 1 rank; start it with mpiexec"
    if os.environ.get("COLLECTIVES_CHECK") == "1":
        return "COLLECTIVES_CHECK=1 makes every call slower; unset it to measure"
    if args.ranks and not 2 <= min(args.ranks) <= max(args.ranks) <= ranks:
        return f"--ranks: expected numbers from 2 to {ranks}, the ranks of this job"
    try:
        wrong = unwritable([args.output if args.check is None else args.json])
        if args.check is not None:
            load(args.check)
        elif wrong is None and os.path.isfile(args.output):  # a device or a pipe is only written to
            load(args.output)
        return wrong
    except OSError as e:
        return f"{e.filename}: {e.strerror}"
    except ValueError as e:
        return str(e)


def _measure(
    args: argparse.Namespace, bench: Bench, names: Sequence[str], sizes: Sequence[int], seconds: float
) -> int:  # fmt: skip
    """Tune, or check a table, unless the options leave a collective no algorithm; returns the exit code."""
    for name in names:
        if not any(bench.may_choose(name, candidate) for candidate in bench.candidates(name, 0)):
            if bench.comm.rank == 0:
                _refuse(f"--without, --mpi: they leave no algorithm of {name}, which --collectives names")
            return 2
    return (_tune if args.check is None else _check)(args, bench, names, sizes, seconds)


def _tune(args: argparse.Namespace, bench: Bench, names: Sequence[str], sizes: Sequence[int], seconds: float) -> int:
    entry, wrong = tune(bench, names, sizes, seconds)
    entry.made |= {"minutes": args.minutes, "without": sorted(args.without), "mpi": args.mpi}
    if bench.comm.rank == 0:
        merged = _keep(entry, args.output)
        print(f"wrote {args.output}: {entry.layout}, {entry.mpi}, {entry.machine}", flush=True)
        if wrong:
            print(f"models: {told(wrong)}, measured at the same times", flush=True)
        (rules,) = (each.rules for each in merged.entries if each.key == entry.key)
        for line in warnings(entry.made, [name for name in names if name in rules and name not in entry.rules]):
            print(line, flush=True)
    return 0


def _keep(entry: Entry, path: str) -> Table:
    """Write the entry to the table in ``path``, and return all that is in it.

    If that cannot be done, the entry is written to a file beside it, and the error is raised.
    """
    found = Table([entry])
    try:
        with locked(path):  # another job may add its entry to the same file
            merged = merge([*([load(path)] if os.path.isfile(path) else []), found])
            save(merged, path)
    except (OSError, ValueError):
        names = (f"{path}.new{number}" for number in ("", *range(2, 100)))
        beside = next((name for name in names if not os.path.lexists(name)), f"{path}.new")
        save(found, beside)
        print(f"what was measured is in {beside}; see --merge", file=sys.stderr, flush=True)
        raise
    return merged


def warnings(made: dict[str, Any], stay: Sequence[str]) -> list[str]:
    """What a user should know of the measurements of an entry, which was ``made`` so: what is missing, and noise.

    ``stay``: collectives without new rules, for which the file had some.
    """
    found = []
    missing = [text for text in made["not_measured"] if text.split(" ")[0] not in stay]
    if missing:
        found.append(f"No time for {', '.join(missing)}: the defaults serve these. Give more --minutes.")
    if stay:
        found.append(f"No time for new rules of {', '.join(stay)}: those in the file stay. Give more --minutes.")
    if made["spread"] > NOISY:
        found.append(
            f"Noisy: the same call took times that differ by {100 * made['spread']:.0f}% (interquartile range). "
            "A difference between algorithms that is smaller than that may have been missed."
        )
    return found


def tune(bench: Bench, names: Sequence[str], sizes: Sequence[int], seconds: float) -> tuple[Entry, list[float]]:
    """Tune the ranks of ``bench`` in about ``seconds``; returns the entry and the relative errors of its models.

    Collective over the ranks of ``bench``.
    """
    start_of_all = time.monotonic()
    context = bench.context
    where = bench.agreed((machine.kind(), mpi_library.description()))
    entry = Entry(where[0], where[1], context.layout)
    searches = [Search(bench, name, sizes) for name in names]
    steps = sum(SWEEPS * len(s.swept) + VISITS * len(s.lengths) for s in searches)
    progress = Progress(steps, bench.comm.rank == 0)
    seconds, begin = bench.stay(seconds), bench.now()
    start = NODE_LIMITS[context.yield_at_once]
    if bench.apart is None:
        progress.begin("limits of the node-local engine")
        entry.limits = bench.limits = search_limits(bench, start, max(sizes), LIMITS * seconds)
    folds = bench.folds(list(sizes))
    doubts = Doubts(bench, start, entry.limits, max(sizes)) if entry.limits is not None else None
    for number in range(SWEEPS):
        progress.begin(f"all algorithms on {context.layout}, {number + 1} of {SWEEPS}")
        if doubts is not None:
            doubts.look()
        _sweep_all(bench, searches, number, begin + MODELS * seconds, progress)
    if doubts is not None:
        entry.limits = bench.limits = doubts.settled()
    for search in searches:
        search.fit(folds)
    _visit_all(bench, searches, begin + seconds, progress)
    progress.close()
    for search in searches:
        rows = search.rows()
        if rows:
            entry.rules[search.collective] = rows
        entry.models |= {(search.collective, *candidate): model for candidate, model in search.models.items()}
    entry.made = _made(bench, searches, start_of_all)
    return entry, [error for search in searches for error in search.errors]


def _sweep_all(bench: Bench, searches: Sequence[Search], number: int, finish: float, progress: Progress) -> None:
    """Sweep all searches once until about ``finish``; the first time each has its share, so that none is left out."""
    for i, search in enumerate(shuffled(searches, number)):
        now = bench.now()
        share = 1 / (len(searches) - i) if number == 0 else 1.0
        search.sweep(number, now + (finish - now) * share, progress.step)


def _visit_all(bench: Bench, searches: Sequence[Search], finish: float, progress: Progress) -> None:
    """Race the best algorithms of all searches until about ``finish``, a time of ``bench.now()``."""
    for number in range(VISITS):
        progress.begin(f"the best of them, {number + 1} of {VISITS}")
        now = bench.now()
        end = now + (finish - now) / (VISITS - number)
        for i, search in enumerate(shuffled(searches, number)):  # later ones use the time that earlier ones leave
            now = bench.now()
            search.visit(number, now + (end - now) * min(1.0, GENEROUS / (len(searches) - i)), progress.step)


def _made(bench: Bench, searches: Sequence[Search], begin: float) -> dict[str, Any]:
    """How an entry was made, for its readers; ``begin`` is the monotonic time at which tuning began."""
    made: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "collectives": __version__,
        "seconds": round(time.monotonic() - begin),
        "fitted": {search.collective: search.fitted for search in searches},
        "not_measured": [missing for search in searches if (missing := search.not_measured()) is not None],
        "spread": float(np.median([spread for search in searches for spread in search.spreads()] or [0.0])),
    }
    if bench.steady is not None:
        made |= {"apart": bench.steady.apart, "elsewhere": bench.steady.strayed / bench.steady.taken}
    return made


def _check(args: argparse.Namespace, bench: Bench, names: Sequence[str], sizes: Sequence[int], seconds: float) -> int:
    table = load(args.check) if bench.comm.rank == 0 else None
    table = bench.agreed(table)
    where = bench.agreed((machine.kind(), mpi_library.description()))
    assert table is not None
    entry = nearest(table.serving(*where), bench.context.layout)
    show = printer(bench.comm)
    if entry is None:
        show(f"{args.check}: no entry for {bench.context.layout} of {where[0]} with {where[1]}")
        return 2
    bench.limits = entry.limits
    apart = entry.made.get("apart")
    seconds = bench.stay(seconds, apart if isinstance(apart, float) else None)
    show(f"# {args.check}, {entry.layout}; here: {bench.context.layout}, {where[1]}, {where[0]}")
    lines = check(bench, table, entry, names, sizes, seconds, lambda steps: Progress(steps, bench.comm.rank == 0))
    if not lines:
        show("no time to measure anything; give --minutes")
        return 2
    text, right = summary(lines)
    if bench.steady is not None:
        text.append(bench.steady.text())
    show("\n".join([HEADING, *(line.text() for line in lines), *text]))
    if args.json and bench.comm.rank == 0:
        _write_json(args.json, bench, lines, where)
    return 0 if right else 1


def _write_json(path: str, bench: Bench, lines: Sequence[Line], where: tuple[str, str]) -> None:
    layout = bench.context.layout
    found = {
        "machine": where[0], "mpi": where[1], "nodes": layout.nodes, "ranks_per_node": layout.ranks_per_node,
        "ranks": layout.ranks, "collectives": __version__, "lines": as_json(lines),
    }  # fmt: skip
    with replacing(path) as file:
        file.write(json.dumps(found, indent=1, allow_nan=False) + "\n")
    say_where(path)
