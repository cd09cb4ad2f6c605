"""Calls that the MPI library serves, and what its errors mean."""

from __future__ import annotations

import os
import time
from typing import Any

from mpi4py import MPI

from .diagnosis import Call
from .errors import CollectiveError, PeerFailure
from .waiting import Wait, Waiting

__all__ = ["MPIRun", "MPIWaiting"]

#: Error classes by which MPI says that a rank died, or that another rank has noticed it (0: this MPI has none).
DEATHS = {getattr(MPI, name, 0) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")} - {0}


class MPIRun:
    """A call that the MPI library serves; it can be waited for as a run of ours, where it has a request."""

    plan = None

    def __init__(self, collective: str, call: Call, request: MPI.Request | None = None, buffers: Any = None):
        self._collective = collective
        self._call = call
        self.request = request
        self.buffers = buffers

    def __str__(self) -> str:
        return f"{self._collective} (mpi)"

    def call(self) -> Call:
        """Number, type signature, op and root."""
        return self._call

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Let MPI progress for up to ``limit`` ns; whether the call has ended."""
        end = time.monotonic_ns() + limit
        assert self.request is not None
        while not MPI.Request.Test(self.request):
            if time.monotonic_ns() >= end:
                return False
            os.sched_yield()
        return True


class MPIWaiting(Waiting):
    """What a communicator of MPI's does while it waits; mixed into :class:`collectives.context.Context`."""

    endpoint: Any

    def by_mpi(self, run: MPIRun, blocking: Any, starting: Any, arguments: Any, timeout: float | None) -> None:
        """Run the MPI library's own collective; with a timeout, its non-blocking one."""
        timeout = self.timeout if timeout is None else timeout
        if timeout is not None:
            run.request, run.buffers = starting(*arguments), arguments
            self.wait_for_mpi(run, timeout)
            return
        wait = Wait(run)
        self.waits.append(wait)
        try:
            blocking(*arguments)
        except MPI.Exception as e:
            if any(map(self.has_ended, self.others())):
                self.fail(run, e)
            raise
        finally:
            self.waits.remove(wait)

    def wait_for_mpi(self, run: MPIRun, timeout: float | None = None) -> None:
        """Wait for a non-blocking call of MPI's, up to the timeout."""
        try:
            self.wait(run, run, timeout)
        except BaseException as e:
            self.fail(run, e)

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """What an error means where all ranks are known to live; None where it is to be raised as it is."""
        if isinstance(error, MPI.Exception):
            return None, ""
        code = self.endpoint.mpi_error
        failed = bool(code) and MPI.Get_error_class(code) in DEATHS
        detail = f" ({MPI.Get_error_string(code)})" if code else ""
        return PeerFailure if failed else CollectiveError, f"{error}{detail}"
