"""Results of a benchmark: records of its rows for JSON, and bandwidths."""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any

import numpy as np

from .. import __version__
from ..files import replacing
from ..schedules import registry
from ..system import machine
from .programs import Program

__all__ = ["Record", "bandwidths", "content", "write"]

#: One row; its times are under "us" by column of the table, percentiles as "p50".
Record = dict[str, Any]


def bandwidths(collective: str, size: int, nbytes: int, seconds: float) -> tuple[float, float]:
    """algbw and busbw in GB/s (10^9 bytes), as nccl-tests define them.

    algbw is the bytes of the vector, all blocks together, divided by the time. busbw multiplies algbw by the bytes that
    cross the slowest link for each byte of the vector, which makes it comparable with the hardware's bandwidth:
    2(p-1)/p for an all-reduce, (p-1)/p where a rank keeps its own block, 1 for all others.
    """
    algbw = nbytes / seconds / 1e9 if seconds else 0.0
    share = (size - 1) / size
    blockwise = collective == "alltoallw" or collective in registry.NAMES and registry.spec(collective).blockwise
    factor = 2 * share if collective == "allreduce" else share if blockwise else 1.0
    return algbw, algbw * factor


def content(program: Program, args: argparse.Namespace, nodes: int, overhead: int, records: list[Record]) -> Record:
    """All results as one object for JSON: program, options, machine, software, rows."""
    import mpi4py
    from mpi4py import MPI

    library = MPI.Get_library_version().rstrip("\0").split("\n")[0].split(", ")[0]
    options = ("message_size", "iterations", "warmup", "mem_limit", "root_rank", "off_cache", "heap", "in_place")
    return {
        "kind": "bench", "program": program.name, "form": program.form, "collective": program.collective,
        "title": program.title, "machine": machine.describe(), "nodes": nodes,
        "software": {
            "collectives": __version__, "library": " ".join(library.split()), "mpi4py": mpi4py.__version__,
            "python": platform.python_version(), "numpy": np.__version__,
        },
        "options": {name: getattr(args, name) for name in options}, "clock_overhead_ns": overhead, "results": records,
    }  # fmt: skip


def write(path: str, made: Record) -> None:
    """Write ``made`` as JSON; OSError if ``path`` cannot be written, and a file there stays as it was."""
    with replacing(path) as file:
        json.dump(made, file, indent=1)
        file.write("\n")
