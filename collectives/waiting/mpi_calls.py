"""Waiting for calls that the MPI library executes, and the meaning of its errors."""

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
from ..diagnostics import deaths
from ..errors import CollectiveError, PeerFailure
from ..system import mpi_library
from . import ending
from .waiting import NOTICE, Waiting
from .watching import Wait

__all__ = ["BOUNDED", "MPIRun", "MPIWaiting", "watch_finalize"]

#: The algorithm of a call under a timeout: MPI's non-blocking collective, which other ranks' blocking one never meets.
BOUNDED = "mpi, under a timeout"
#: Error classes of a call that MPI began and could not complete; others mean that it refused the arguments.
INCOMPLETE = {MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_IN_STATUS}


@functools.cache
def watch_finalize() -> None:
    """Have MPI_Finalize tell other ranks, if the program calls it itself, and abort the program if it might hang.

    MPI_Finalize first deletes the attributes of MPI_COMM_SELF, in reverse order of their setting.
    """
    mpi_library.library().watch_end()
    key = MPI.Comm.Create_keyval(delete_fn=lambda *_: ending.finalizing())
    MPI.COMM_SELF.Set_attr(key, True)


class MPIRun:
    """A call that the MPI library executes. If it has a ``request``, it can be waited for like the library's own."""

    plan = None

    def __init__(self, collective: str, call: Call, buffers: Any = None):
        self._collective = collective
        self._call = call
        self.request: MPI.Request | None = None
        self.began = time.monotonic()
        self.ranks: list[int] | None = None  # ranks that the call may wait for; None: all others
        self.buffers = buffers

    def __str__(self) -> str:
        return f"{self._collective} (mpi)" if self._call.algorithm else self._collective

    def call(self) -> Call:
        """The call's number, collective, type signature, op and root."""
        return self._call

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Let MPI progress for up to ``limit`` ns; return whether the call has ended."""
        begin = time.monotonic_ns()
        patience = _core.Patience()
        assert self.request is not None
        while not MPI.Request.Test(self.request):
            if time.monotonic_ns() - begin >= limit:
                return False
            (os.sched_yield if yield_at_once else patience.give_way)()
        return True


class MPIWaiting(Waiting):
    """The waiting of :class:`collectives.runtime.mpi_context.MPIContext`, which derives from this class."""

    endpoint: Any
    internal: MPI.Intracomm

    def has_ended(self, rank: int) -> bool:
        """Whether this machine's system or MPI knows that the process of ``rank`` has ended."""
        return super().has_ended(rank) or rank in deaths.missed(self.internal)

    def hears_of_deaths(self) -> bool:
        """Whether the system or MPI would report the death of some other rank's process."""
        return super().hears_of_deaths() or deaths.are_told()

    def by_mpi(self, run: MPIRun, blocking: Any, starting: Any, arguments: Any, timeout: float | None) -> None:
        """Run the MPI library's collective on ``arguments``: ``blocking``, or ``starting`` if there is a timeout.

        ``timeout`` is in seconds, by default the communicator's. Raises CollectiveTimeout, PeerFailure, MPI.Exception.
        """
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
        """Within this context, raise PeerFailure for an error of MPI's if a rank has died; other errors pass."""
        try:
            yield
        except MPI.Exception as e:
            incomplete = e.Get_error_class() in INCOMPLETE and bool(self.dead(time.monotonic() + NOTICE))
            if incomplete or deaths.by_death(e):
                self.fail(run, e)
            raise

    def wait_for_mpi(self, run: Any, timeout: float | None = None) -> None:
        """Wait for the non-blocking MPI call ``run``, up to ``timeout`` seconds (default: the communicator's)."""
        try:
            self.wait(run, timeout)
        except BaseException as e:
            self.fail(run, e)

    def glance_at_mpi(self, run: MPIRun) -> None:
        """Check, by :meth:`glance`, that an MPI call which the program tests can still end; raise its error if not."""
        try:
            self.glance(run, run)
        except BaseException as e:
            self.fail(run, e)

    def unequal_message(self) -> str:
        """Text for an error message: whose message was not as long as expected, if that is known."""
        found = self.endpoint.unequal_message()
        if found is None:
            return ""
        source, nbytes, expected = found
        sent = f"more than {expected} bytes" if nbytes is None else f"{nbytes} bytes, not {expected}"
        return f": rank {source} sent a message of {sent}"

    def blame_transport(self, error: BaseException) -> tuple[type[CollectiveError] | None, str]:
        """The exception class and text for ``error`` if no rank is known to have died; None: raise it unchanged."""
        if isinstance(error, MPI.Exception):
            return (PeerFailure, f"a rank died ({error})") if deaths.by_death(error) else (None, "")
        code = self.endpoint.mpi_error
        detail = f" ({MPI.Get_error_string(code)})" if code else ""
        return PeerFailure if deaths.means_death(code) else CollectiveError, f"{error}{detail}"
