"""Runs a benchmark program: every table, row by row, like the OSU Micro-Benchmarks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..system import machine
from . import overlap
from .exchanges import Exchange
from .options import iterations, message_sizes
from .pairs import Pair
from .programs import Program
from .results import Record, bandwidths
from .settings import Setting, largest_cache, part, settings
from .table import columns, head, row
from .timing import combine, sample
from .workloads import Workload

__all__ = ["Failure", "run"]

WINDOW = 64  # messages under way at a time
NOT_TIMES = ("validation", "iterations")
PERCENTILES = (50.0, 90.0, 99.0)
REFUSALS = (ValueError, TypeError, KeyError, NotImplementedError)  # raised by calls that are impossible


class Failure(Exception):
    """Ends the program on all ranks, which raise it together; has the exit code and the message of rank 0."""

    def __init__(self, code: int, message: str):
        super().__init__(message)
        self.code = code


def run(program: Program, args: argparse.Namespace, world: MPI.Intracomm) -> tuple[int, list[Record]]:
    """Run all tables, which rank 0 prints; returns the exit code and, on rank 0, the records."""
    records: list[Record] = []
    code = 0
    for ranks in args.ranks or [world.size]:
        with part(world, ranks) as plain:
            if plain is not None:
                try:
                    for_ranks = _pairs if program.pairs else _collectives
                    for_ranks(program, args, plain, records)
                except Failure as failure:
                    code = failure.code
                    if world.rank == 0:
                        print(failure, file=sys.stderr, flush=True)
        code = world.bcast(code, 0)  # rank 0 takes part in every number of ranks
        if code:
            break
    return code, records


def agreed(comm: MPI.Intracomm, found: str | None) -> str | None:
    """The value of the lowest rank whose ``found`` is not empty, on all ranks; None if there is none."""
    return next(filter(None, MPI.Intracomm(comm).allgather(found)), None)


def printer(comm: MPI.Intracomm) -> Callable[[str], None]:
    """A function that prints a text at once on rank 0, and does nothing on other ranks."""
    return (lambda text: print(text, flush=True)) if comm.rank == 0 else (lambda text: None)


def _columns_values(setting: Setting, samples: np.ndarray) -> tuple[dict[str, Any], float]:
    """The values of the usual columns, in us, and the mean in seconds."""
    args = setting.args
    summary = combine(setting.comm, samples, [*PERCENTILES, *(args.tail_lat or ())])
    values: dict[str, Any] = {
        "avg": summary.mean * 1e6, "min": summary.low * 1e6, "max": summary.high * 1e6,
        "iterations": summary.iterations,
    }  # fmt: skip
    values |= {f"p{p:g}": seconds * 1e6 for p, seconds in summary.percentiles.items()}
    return values, summary.mean


# --- collectives --------------------------------------------------------------------------------------------------


def _collectives(program: Program, args: argparse.Namespace, plain: MPI.Intracomm, records: list[Record]) -> None:
    work = overlap.Work() if program.form == "start" else None
    shown = columns(program, args)
    for setting in settings(program, args, plain):
        say = printer(plain)
        say(head(program, setting.type_name, setting.notes(), shown, args.title))
        ran: list[tuple[int, str]] = []
        waits = 0.0
        buses: list[float] = []
        for nbytes in message_sizes(program, args):
            found = _measure(setting, nbytes, work)
            if args.nccl and isinstance(found, tuple):
                found = _both_places(found, _measure(setting.in_place(), nbytes, work), records, buses)
            if isinstance(found, str):
                say(f"# {found}")
                break
            if found is not None:
                record, values = found
                say(row(program, record["bytes"], values, shown))
                waits = max(waits, record["core_waits"])
                records.append(record)
                ran.append((record["bytes"], record["ran"]))
                if record["validation"] not in (None, "Pass"):
                    raise Failure(1, f"{program.name}, {record['bytes']} bytes: {record['validation']}")
        if buses:
            say(f"# Avg bus bandwidth    : {sum(buses) / len(buses):.6g}")
        if setting.algorithm is None and program.ours and ran:
            say(f"# Algorithms: {_runs(ran)}.")
        if crowded := machine.busy(waits):
            say(f"# {crowded}")


def _both_places(
    outside: tuple[Record, dict[str, Any]], inside: Any, records: list[Record], buses: list[float]
) -> tuple[Record, dict[str, Any]] | str:
    """One row of both places: the record out of place, and the values of both; keeps the record in place.

    ``buses`` gets both bus bandwidths. If the call cannot be made in place, returns the text that says so.
    """
    if not isinstance(inside, tuple):
        return inside or "Cannot be made in place."
    record, values = inside
    records.append(record)
    buses += [outside[1]["busbw"], values["busbw"]]
    found = [outside[0]["validation"], record["validation"]]
    wrong = next((text for text in found if text not in (None, "Pass")), None)
    both = {**outside[1], **{f"{key}_in_place": value for key, value in values.items()}}
    return {**outside[0], "validation": wrong or found[0]}, both | {"validation": "Fail" if wrong else found[0]}


def _runs(ran: Iterable[tuple[int, str]]) -> str:
    """The algorithms by size as text: "bruck up to 4096, pairwise up to 1048576"."""
    last: dict[str, int] = {}
    for nbytes, name in ran:
        last[name] = nbytes
    return next(iter(last)) if len(last) == 1 else ", ".join(f"{name} up to {nbytes}" for name, nbytes in last.items())


def _measure(setting: Setting, nbytes: int, work: overlap.Work | None) -> tuple[Record, dict[str, Any]] | str | None:
    """One row: its record and its values by column; a text ends the table; None if there is no such message."""
    itemsize = np.dtype("float16" if setting.dtype == "bfloat16" else setting.dtype).itemsize
    count = setting.count(nbytes, itemsize)
    if nbytes and not count:
        return None
    if not setting.fits(count, itemsize):
        return setting.too_long(nbytes)
    timed, warm = iterations(setting.program, setting.args, nbytes)
    try:
        workload = setting.workload(count, setting.sets(count, itemsize))
        ready = _prepared(setting, workload)
        ran = _ran(setting)
        refused = None
    except REFUSALS as error:
        refused = str(error)
    refused = agreed(setting.comm, refused)
    if refused is not None:
        if setting.args.algorithm == "all":
            return f"Cannot serve this: {refused}."
        raise Failure(2, f"{setting.program.name}: {refused}")
    core_waits = machine.CoreWaits()
    if work is not None:
        values, samples = overlap.measure(setting.comm, ready, timed, warm, setting.args.test_calls or 0, work)
        usual, mean = _columns_values(setting, samples)
        values = {**usual, **values}
    else:
        values, mean = _columns_values(setting, sample(setting.comm, ready, timed, warm))
    share = MPI.Intracomm(setting.comm).allreduce(core_waits.share(), MPI.MAX)
    if setting.program.form == "plan":
        ready.free()
    record = _record(setting, workload, mean, values, _validated(setting, workload)) | {"ran": ran}
    return record | {"core_waits": share}, values


def _prepared(setting: Setting, workload: Workload | Exchange) -> Any:
    """The call to be timed, after it has been made once without error."""
    form = setting.program.form
    if form == "plan":
        plan = workload.plan()
        plan()
        return plan
    if form == "start":
        start = workload.start()
        start().Wait()
        return start
    call = workload.call(**setting.keywords)
    call()
    return call


def _ran(setting: Setting) -> str:
    """The algorithm that served the last call; asked before others follow it, such as barriers."""
    last = getattr(setting.comm, "last", None)
    return str(last.algorithm) if last and setting.program.ours else "mpi"


def _validated(setting: Setting, workload: Workload | Exchange) -> str | None:
    """``Pass``, a text that says what is wrong, or None without --validation."""
    if not setting.args.validation:
        return None
    form, keywords = setting.program.form, setting.keywords
    found = None
    for _ in range(max(1, setting.args.validation_warmup)):
        found = found or workload.validate(form, **keywords)
    return agreed(setting.comm, found) or "Pass"


def _record(
    setting: Setting, workload: Workload | Exchange, mean: float, values: dict[str, Any], validation: str | None
) -> Record:
    """One row as a record for JSON; adds validation and bandwidths to ``values``."""
    args = setting.args
    algbw, busbw = bandwidths(setting.program.collective, setting.comm.size, workload.nbytes, mean)
    values |= {"validation": validation if validation in (None, "Pass") else "Fail", "algbw": algbw, "busbw": busbw}
    us = {key: value for key, value in values.items() if key not in ("validation", "iterations", "algbw", "busbw")}
    return {
        "ranks": setting.comm.size, "algorithm": setting.algorithm,
        "type": setting.type_name, "bytes": workload.count and workload.message, "vector": workload.nbytes,
        "sets": workload.rotate, "heap": args.heap, "in_place": args.in_place, "root": args.root_rank,
        "engine": args.engine, "iterations": values["iterations"], "validation": validation,
        "us": us, "algbw": algbw, "busbw": busbw,
    }  # fmt: skip


# --- pairs of ranks -----------------------------------------------------------------------------------------------


def _pairs(program: Program, args: argparse.Namespace, plain: MPI.Intracomm, records: list[Record]) -> None:
    from ..communicator import Communicator

    comm, shown, say = Communicator(plain), columns(program, args), printer(plain)
    cache = largest_cache(plain)
    reuse = "in turn, out of the cache" if args.off_cache else "the same for every message"
    notes = [f"Ranks: {comm.size}. Buffers: private, {reuse}."]
    if program.form == "mbw_mr":
        notes.append(f"[ pairs: {comm.size // 2} ] [ window size: {args.window_size or WINDOW} ]")
    for type_name in args.type:
        say(head(program, type_name, notes, shown, args.title))
        for nbytes in message_sizes(program, args):
            setting = Setting(program, args, comm, None, type_name, cache)
            itemsize = np.dtype(setting.dtype).itemsize
            if nbytes % itemsize:
                continue
            slots = setting.sets(nbytes // itemsize, itemsize)
            if not setting.fits(nbytes // itemsize, itemsize):
                say(f"# {setting.too_long(nbytes)}")
                break
            values, wrong = _pair(setting, Pair(comm, nbytes, setting.dtype, slots), nbytes)
            say(row(program, nbytes, values, shown))
            records.append({
                "ranks": comm.size, "algorithm": None, "ran": "mpi", "type": type_name, "bytes": nbytes,
                "vector": nbytes, "sets": slots, "validation": wrong or values["validation"],
                "iterations": values["iterations"],
                "us": {} if program.streams else {k: v for k, v in values.items() if k not in NOT_TIMES},
                "MB/s": values.get("bandwidth"), "messages/s": values.get("rate"),
                "tail MB/s": {k: v for k, v in values.items() if k[0] == "p"} if program.streams else {},
            })  # fmt: skip
            if wrong:
                raise Failure(1, f"{program.name}, {nbytes} bytes: {wrong}")
    comm.Free()


def _pair(setting: Setting, pair: Pair, nbytes: int) -> tuple[dict[str, Any], str | None]:
    """One row of messages between pairs of ranks, and what was received wrongly, or None."""
    program, args, comm = setting.program, setting.args, MPI.Intracomm(setting.comm)
    timed, warm = iterations(program, args, nbytes)
    window = (args.window_size or WINDOW) if program.streams else 1
    timed = max(timed, -(-len(pair.sends) // window))  # every buffer must be received
    values: dict[str, Any]
    if program.streams:
        both = program.form == "bibw"
        found = comm.gather(pair.windows(timed, warm, window, both))  # on rank 0 only: they may be many
        messages = window * (1 + both)
        values = comm.bcast(_rates(found[: comm.size // 2], messages, nbytes, args.tail_lat or ()) if found else {})
        values["iterations"] = timed
    else:
        values, _ = _columns_values(setting, pair.latency(timed, warm))
    wrong = None
    if args.validation:
        receives = not pair.first or program.form not in ("bw", "mbw_mr")
        wrong = agreed(comm, pair.difference() if receives else None)
    return {**values, "validation": ("Fail" if wrong else "Pass") if args.validation else None}, wrong


def _rates(windows: list[np.ndarray], messages: int, nbytes: int, percentiles: Iterable[float]) -> dict[str, Any]:
    """The columns of a bandwidth, of all pairs together.

    ``windows`` are the seconds of each pair's windows. A window has ``messages`` messages of ``nbytes`` bytes.
    """
    every = messages * len(windows)  # of all pairs in the time of a window
    rate = every / float(np.mean(windows))
    values = {"bandwidth": rate * nbytes / 1e6, "rate": rate}
    for percent in percentiles:  # this part of the windows has the bandwidth or more
        values[f"p{percent:g}"] = every * nbytes / 1e6 / float(np.percentile(windows, percent))
    return values
