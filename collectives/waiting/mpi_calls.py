"""Calls that the MPI library serves, and what its errors mean."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI

from ..arguments.signature import Call
from ..core import _core
from ..diagnostics import deaths, exit_notes
from ..errors import CollectiveError, PeerFailure
from ..system import mpi_library
from . import ending
from .waiting import NOTICE, Waiting
from .watching import Wait

__all__ = ["MPIRun", "MPIWaiting", "watch_finalize"]

SPIN = 100_000  # ns that MPI is polled before other processes may have the core
#: Error classes of a call that MPI could not complete, rather than would not begin.
INCOMPLETE = {MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_IN_STATUS}


@functools.cache
def watch_finalize() -> None:
    """Say when the program calls MPI_Finalize itself, and see to it that it ends.

    MPI first deletes the attributes of MPI_COMM_SELF, the last one set first.
    """
    mpi_library.library().watch_end()
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: ending.say(exit_notes.finalizing()))
    MPI.COMM_SELF.Set_attr(key, True)


class MPIRun:
    """A call that the MPI library serves; it can be waited for as a run of ours, where it has a request."""

    plan = None

    def __init__(self, collective: str, call: Call, buffers: Any = None):
        self._collective = collective
        self._call = call
        self.request: MPI.Request | None = None
        self.began = time.monotonic()
        self.ranks: list[int] | None = None  # those that may be waited for, where not all others are
        self.buffers = buffers

    def __str__(self) -> str:
        return f"{self._collective} (mpi)" if self._call.algorithm else self._collective

    def call(self) -> Call:
        """Number, type signature, op and root."""
        return self._call

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Let MPI progress for up to ``limit`` ns; whether the call has ended."""
        begin = time.monotonic_ns()
        assert self.request is not None
        while not MPI.Request.Test(self.request):
            waited = time.monotonic_ns() - begin
            if waited >= limit:
                return False
            if yield_at_once:
                os.sched_yield()
            elif waited > SPIN:
                _core.give_way()
        return True


class MPIWaiting(Waiting):
    """What a communicator of MPI's does while it waits; mixed into :class:`collectives.runtime.context.Context`."""

    endpoint: Any
    internal: MPI.Intracomm

    def has_ended(self, rank: int) -> bool:
        """Whether the process of a rank is known to have ended: to this machine, or to MPI."""
        return super().has_ended(rank) or rank in deaths.missed(self.internal)

    def hears_of_deaths(self) -> bool:
        """Whether anybody would tell."""
        return super().hears_of_deaths() or deaths.are_told()

    def by_mpi(self, run: MPIRun, blocking: Any, starting: Any, arguments: Any, timeout: float | None) -> None:
        """Run the MPI library's own collective; with a timeout, its non-blocking one."""
        timeout = self.timeout if timeout is None else timeout
        if timeout is not None:
            run.buffers = arguments
            with Wait(run, timeout, self.waits), self.blamed(run):
                run.request = starting(*arguments)
            self.wait_for_mpi(run, timeout)
            return
        with Wait(run, None, self.waits), self.blamed(run):
            blocking(*arguments)

    @contextlib.contextmanager
    def blamed(self, run: Any) -> Iterator[None]:
        """Have the failure of a call of MPI's be PeerFailure where a rank died; what it refuses stays as it is."""
        try:
            yield
        except MPI.Exception as e:
            incomplete = e.Get_error_class() in INCOMPLETE and bool(self.dead(time.monotonic() + NOTICE))
            if incomplete or deaths.by_death(e):
                self.fail(run, e)
            raise

    def wait_for_mpi(self, run: Any, timeout: float | None = None) -> None:
        """Wait for a non-blocking call of MPI's, up to the timeout."""
        try:
            self.wait(run, timeout)
        except BaseException as e:
            self.fail(run, e)

    def glance_at_mpi(self, run: MPIRun) -> None:
        """:meth:`glance` at a call of MPI's, which fails for all that wait where one ends it."""
        try:
            self.glance(run, run)
        except BaseException as e:
            self.fail(run, e)

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """What an error means where all ranks are known to live; None where it is to be raised as it is."""
        if isinstance(error, MPI.Exception):
            return (PeerFailure, f"a rank died ({error})") if deaths.by_death(error) else (None, "")
        code = self.endpoint.mpi_error
        detail = f" ({MPI.Get_error_string(code)})" if code else ""
        return PeerFailure if deaths.means_death(code) else CollectiveError, f"{error}{detail}"
