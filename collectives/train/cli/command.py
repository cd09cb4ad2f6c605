"""What the commands that train have in common: rank 0 prints, and errors of all ranks become an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from ..agree import communicator

FAILED = 2  # exit status
ERRORS = (ValueError, OSError, ImportError, FloatingPointError)
Say = Callable[[str], None]


def run_command(
    name: str, job: Callable[[argparse.Namespace, Any, Say], int], args: argparse.Namespace, comm: Any
) -> int:
    """The exit status of ``job(args, comm, say)`` on all ranks of `comm` (default: the world). Collective.

    ``say(text)`` prints on rank 0. An error of `ERRORS`, which all ranks raise, is printed by rank 0 as one of the
    command `name`; the status is then 2.
    """
    comm = communicator(comm)

    def say(text: str) -> None:
        if comm.rank == 0:
            print(text, flush=True)

    try:
        return job(args, comm, say)
    except ERRORS as error:
        if comm.rank == 0:
            print(f"{name}: error: {error}", file=sys.stderr, flush=True)
        return FAILED
