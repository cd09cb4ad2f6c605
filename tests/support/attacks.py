"""Jobs of hostile programs: each has a mark in its environment, by which what it leaves is found."""

import contextlib
import os
import signal
import time
from pathlib import Path

from jobs import ROOT

MARK = "COLLECTIVES_ATTACK"
PROGRAMS = ROOT / "tests/attack/programs"
#: Open MPI 5.0.11 itself may crash if a rank dies while it makes a communicator.
CRASHED = (
    r"Segmentation fault\n(.*\n)*?Current thread .*\n"
    r'  File ".*/(mpi_context\.py", line \d+ in _made|derived\.py", line \d+ in _make)\n'
)


class UnnamedHang(AssertionError):
    """A program that did not end, nor say who is missing."""


def processes_of(job: str) -> list[int]:
    """Processes that have the job's mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={job}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def names_left(since: float) -> list[Path]:
    """Names in /dev/shm made since then by processes that are no more."""
    found = []
    for name in Path("/dev/shm").glob("collectives-*"):
        pid = name.name.split("-")[1]
        if name.stat().st_mtime >= since and not Path(f"/proc/{pid}").exists():
            found.append(name)
    return found


def clean_up(job: str, since: float) -> int:
    """End what a job left, and say how much that was; its processes have a moment to end by themselves."""
    end = time.monotonic() + 5
    while (left := processes_of(job)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    names = names_left(since)
    for name in names:
        name.unlink()
    return len(left) + len(names)
