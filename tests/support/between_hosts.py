"""Jobs on several hosts that make one collective again and again, until something happens."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from attacks import MARK, PROGRAMS, clean_up
from faults import Hosts
from jobs import ROOT, launch

__all__ = ["COLLECTIVES", "TIMEOUT", "WITHIN", "Job", "hosts_or_skip"]

TIMEOUT = 3  # seconds, of the collectives
WITHIN = 5.0  # seconds from what happens, or from the timeout, to the error
PATIENCE = 120  # seconds that a job may take
COLLECTIVES = [
    "allreduce", "allreduce_by_mpi", "iallreduce", "persistent", "barrier", "bcast", "scatter", "reduce", "gather",
    "allgather", "alltoall", "reduce_scatter_block", "scan", "objects", "allgatherv", "alltoallv",
    "reduce_scatter", "dup", "split", "init",
]  # fmt: skip


@contextlib.contextmanager
def hosts_or_skip(number: int) -> Iterator[Hosts]:
    """Hosts for a ``with`` block; the test is skipped, with the reason, where there can be none."""
    try:
        made = Hosts(number).__enter__()
    except RuntimeError as e:
        pytest.skip(str(e))
    try:
        yield made
    finally:
        made.__exit__()


class Job:
    """A job of a program of `programs`, started and, at the end of a ``with`` block, gone.

    There are ``each`` ranks on every host. After the block ``code`` is the launcher's exit code, None if it was ended
    from here; ``output`` is what the job printed, ``left`` the number of its processes that had to be ended.
    """

    def __init__(
        self, mpi: str, hosts: Hosts, folder: Path, collective: str, what: str, flags: Sequence[str] = (),
        each: int = 1, program: str = "between_hosts.py",
    ):  # fmt: skip
        self._results, self._mark, self._since = folder / "results", uuid.uuid4().hex, time.time()
        self._results.touch()
        env = {MARK: self._mark, "TIMEOUT": str(TIMEOUT), "RESULTS": str(self._results), "PYTHONPATH": str(ROOT)}
        env["OMP_NUM_THREADS"] = "1"
        flags = [*flags, *hosts.flags(mpi, folder, each, env)]
        line, how = launch(mpi, hosts.number * each, [str(PROGRAMS / program), collective, what], env, flags)
        self._printed = folder / "printed"
        with self._printed.open("a") as file:  # ranks of a host that is cut off write there themselves
            self._process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, **how)
        self.code: int | None = None
        self.left = 0

    def __enter__(self) -> Job:
        return self

    def told(self) -> dict[int, dict[str, Any]]:
        """What each rank has said, by rank, in one dictionary each."""
        found: dict[int, dict[str, Any]] = {}
        for line in self._results.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                said = json.loads(line)
                found.setdefault(said["rank"], {}).update(said)
        return found

    def wait_for(self, word: str, ranks: Sequence[int], seconds: float = PATIENCE) -> bool:
        """Wait until all ``ranks`` have said something with this key; whether they have."""
        end = time.monotonic() + seconds
        while not all(word in self.told().get(rank, {}) for rank in ranks):
            if time.monotonic() > end or self._process.poll() is not None:
                return all(word in self.told().get(rank, {}) for rank in ranks)
            time.sleep(0.02)
        return True

    def join(self, seconds: float = PATIENCE) -> None:
        """Wait until the launcher has ended; no longer than so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.code = self._process.wait(seconds)

    def __exit__(self, *exception: object) -> None:
        self.join(0.1)
        if self.code is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self.left = clean_up(self._mark, self._since)

    @property
    def output(self) -> str:
        """What the job has printed."""
        return self._printed.read_text()
