"""Measures how long MPI, and then this library, take to start."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from ..files import unwritable
from .programs import Program
from .results import write
from .table import head

__all__ = ["run"]


def run(program: Program, args: argparse.Namespace) -> int:
    """Start MPI, which must not have been started, and print the times; returns 0, 2 if the file cannot be written."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    if MPI.Is_initialized():
        raise RuntimeError("init: MPI has been started already")
    begin = time.perf_counter()
    MPI.Init_thread()
    started = time.perf_counter()
    from ..communicator import Communicator

    imported = time.perf_counter()
    comm = Communicator(MPI.COMM_WORLD)
    made = time.perf_counter()
    why = MPI.COMM_WORLD.bcast(unwritable([args.json]) if comm.rank == 0 else None)
    if why is not None:
        if comm.rank == 0:
            print(why, file=sys.stderr, flush=True)
        return 2
    every = MPI.COMM_WORLD.gather((started - begin, made - imported), 0)
    comm.Free()
    if every is not None:
        _show(program, args, [list(times) for times in zip(*every, strict=True)])
    return 0


def _show(program: Program, args: argparse.Namespace, times: list[list[float]]) -> None:
    ranks = len(times[0])
    print(head(program, "", [], [], args.title), flush=True)
    print(f"nprocs: {ranks}, {_line(times[0])}", flush=True)
    print(f"# collectives.Communicator(MPI.COMM_WORLD) after it: {_line(times[1])}", flush=True)
    if args.json:
        found: dict[str, Any] = {"kind": "init", "program": "init", "ranks": ranks}
        write(args.json, found | {"MPI_Init": times[0], "Communicator": times[1]})


def _line(seconds: list[float]) -> str:
    low, high, mean = min(seconds) * 1e3, max(seconds) * 1e3, sum(seconds) / len(seconds) * 1e3
    return f"min: {low:.2f} ms, max: {high:.2f} ms, avg: {mean:.2f} ms"
