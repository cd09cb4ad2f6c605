"""Jobs that get a signal when they have come so far."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from jobs import RANK, descendants, environment

__all__ = ["end_all", "interrupt", "newest", "ranks_of"]

PATIENCE = 120  # seconds


def ranks_of(job: subprocess.Popen) -> list[int]:
    """The processes of a job's ranks."""
    return [pid for pid in descendants(job.pid) if RANK.search(environment(pid))]


def rank_of(pid: int) -> int | None:
    """The rank that a process is; None if it is none."""
    found = RANK.search(environment(pid))
    return int(found["rank"]) if found else None


def newest(out: Path) -> int:
    """The step of the newest checkpoint of a run in the folder ``out``; 0 if there is none."""
    return max((int(path.name.removeprefix("step-")) for path in out.glob("checkpoints/*/step-*")), default=0)


def end_all(job: subprocess.Popen, ranks: list[int]) -> None:
    """End what is left of a job: its launcher, what that has started, and ``ranks`` that outlive it."""
    left = [*descendants(job.pid), job.pid] if job.poll() is None else []
    for pid in [*left, *(pid for pid in ranks if RANK.search(environment(pid)))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()


def interrupt(job: subprocess.Popen, ready: Callable[[], bool], signum: int, whom: str | int) -> tuple[int, str]:
    """Send a signal to ``whom`` of a job as soon as it is ``ready``: the rank of this number, "one" rank, "all" ranks
    or the "launcher".

    Returns the launcher's exit code, and what was printed. AssertionError if the job ends before it is ready, does not
    get ready, or does not end.
    """
    ranks: list[int] = []
    try:
        end = time.monotonic() + PATIENCE
        while not ready():
            assert job.poll() is None, f"it has ended by itself: {job.communicate()[0]}"
            assert time.monotonic() < end, "it makes no steps"
            time.sleep(0.002)
        ranks = ranks_of(job)
        assert ranks, "it has ended by itself"
        chosen = {"one": [random.choice(ranks)], "all": ranks, "launcher": [job.pid]}
        for pid in [pid for pid in ranks if rank_of(pid) == whom] if isinstance(whom, int) else chosen[whom]:
            with contextlib.suppress(ProcessLookupError):  # the launcher ends the others after the first
                os.kill(pid, signum)
        printed, _ = job.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"it does not end after signal {signum} to {whom}") from None
    finally:
        end_all(job, ranks)
    return job.returncode, printed
