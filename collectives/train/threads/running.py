"""Runs a function, or a script, on ranks that are threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .comm import ThreadComm
from .job import Group, Job, current, set_current

T = TypeVar("T")
PATIENCE = 5.0  # seconds for the other ranks to end after a failure


def run(size: int, function: Callable[[Any], T], *, timeout: float | None = 300.0) -> list[T]:
    """Call ``function(comm)`` on `size` ranks, which are threads of this process; returns their results by rank.

    Rank 0 is the calling thread, so that a debugger stops in it. `comm` is a `ThreadComm`; within the function it is
    also the default communicator of this package's functions. `timeout`: seconds that a rank waits for others (None:
    for ever, as a debugger may need).

    If the function raises on a rank, the other ranks raise PeerFailure in their next call, or in the one in which they
    wait; then the first exception is raised here. All ranks share the process's modules, environment, torch's random
    numbers and BLAS threads. Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    job = Job(size, timeout)
    group = Group(job, list(range(size)))
    results: dict[int, T] = {}

    def body(rank: int) -> None:
        comm, before = ThreadComm(group, rank), current()
        set_current(comm)
        try:
            results[rank] = function(comm)
            job.end(rank)
        except BaseException as error:
            job.fail(rank, error)
        finally:
            set_current(before)

    threads = [threading.Thread(target=body, args=(r,), name=f"rank {r}", daemon=True) for r in range(1, size)]
    for thread in threads:
        thread.start()
    body(0)
    for thread in threads:
        while thread.is_alive() and job.error is None:
            thread.join(0.1)
        thread.join(PATIENCE)
    if job.error is not None:
        raise job.error
    return [results[rank] for rank in range(size)]


def run_script(size: int, path: str, arguments: Sequence[str] = (), *, timeout: float | None = 300.0) -> None:
    """Run the Python program `path` on `size` ranks, each with a namespace of its own; see `run`.

    The program must take its communicator from ``train.communicator()``, or leave ``comm`` to its default: MPI's world
    has one rank here. Raises OSError or SyntaxError for a file that is no program, and what the program raises, except
    for SystemExit with status 0.
    """
    code = compile(Path(path).read_bytes(), path, "exec")
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))

    def one(comm: Any) -> None:
        try:
            exec(code, {"__name__": "__main__", "__file__": path})
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise

    run(size, one, timeout=timeout)
