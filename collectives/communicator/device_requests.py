"""Non-blocking and persistent calls on arrays of a GPU.

A thread makes them as blocking calls on a duplicate of the communicator, one after the other: the thread and the
duplicate that non-blocking calls with objects have. So the order of calls is the program's on all ranks.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from ..arguments.calls import Arguments, Collective, Options
from ..arguments.memory import OnDevice
from ..core import _core
from ..runtime.mpi_context import MPIContext
from ..waiting import ending
from . import device_calls
from .requests import UNDER_WAY, InLowerCase, set_handle

__all__ = ["init", "start"]


class _Job:
    """One call, which another thread makes; MPI's generalized request ``grequest`` is complete at its end."""

    def __init__(self, run: Callable[[], None]):
        self._run: Callable[[], None] | None = run
        self.ended, self.error = threading.Event(), None
        self.grequest = MPI.Grequest.Start(self._query)

    error: BaseException | None
    heard = False  # whether a wait of the classes below raises the error itself

    def __call__(self) -> None:
        assert self._run is not None
        try:
            self._run()
        except BaseException as e:
            self.error = e
        self._run = None  # which has the arrays
        self.ended.set()
        self.grequest.Complete()

    def _query(self, status: MPI.Status) -> None:
        """MPI asks for the outcome. mpi4py prints the error, and MPI's own wait raises MPI.Exception."""
        if self.error is not None and not self.heard:
            raise MPI.Exception(MPI.ERR_OTHER) from self.error


class _WaitsForJob(InLowerCase):
    """Waits and tests of a request whose call another thread makes."""

    _job: _Job | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete; raises the error that ended it early. Returns True."""
        ending.refuse_if_forked()
        if self._job is not None:
            self._job.ended.wait()
        return self._end(functools.partial(super().Wait, status))

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete; raises the error that ended it early."""
        ending.refuse_if_forked()
        if self._job is not None and not self._job.ended.is_set():
            return False
        return self._end(functools.partial(super().Test, status))

    def _end(self, by_mpi: Callable[[], bool]) -> bool:
        job, self._job = self._job, None
        if job is not None:
            job.heard = True
        done = by_mpi()
        if job is not None and job.error is not None:
            raise job.error
        return done

    def Cancel(self) -> None:
        """Raise MPI.Exception: collectives cannot be cancelled."""
        raise MPI.Exception(MPI.ERR_REQUEST)


class DeviceRequest(_WaitsForJob, MPI.Grequest):  # type: ignore[misc]
    """Request of a non-blocking collective on arrays of a GPU."""


class PersistentDeviceRequest(_WaitsForJob, MPI.Prequest):  # type: ignore[misc]
    """Request of a persistent collective on arrays of a GPU."""

    _launch: Callable[[], _Job] | None = None

    def Start(self) -> None:
        """Start the collective; ValueError if the previous start has not been waited for, or after ``Free``."""
        if self._launch is None:
            raise ValueError("this persistent request has been freed")
        if self:  # its handle is not null
            raise ValueError(UNDER_WAY)
        self._job = self._launch()
        set_handle(self, self._job.grequest.handle)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Start all ``requests`` in order."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Wait for the start under way, and let go of the arrays."""
        if self and not ending.forked():
            self.Wait()
        self._launch = None

    def free(self) -> None:
        """Call :meth:`Free` if the request has not been freed; the handle is null between two starts, too."""
        if self._launch is not None:
            self.Free()


def _launcher(
    comm: Any, context: MPIContext, collective: Collective, arguments: Arguments, options: Options, found: OnDevice,
    name: str,
) -> Callable[[], _Job]:  # fmt: skip
    """A function that starts a checked call; the first one of a communicator waits for all ranks."""
    call, make_order = device_calls.prepared(comm, context, collective, arguments, options, found)
    choice = comm._choose(call.draft, options, options.algorithm, mpi="never")
    if options.deterministic is None:
        options = replace(options, deterministic=context.deterministic)
    mover = comm._mover(name)

    def launch() -> _Job:
        context.check()
        tick, order = _core.ticks(), make_order()
        with order.lane:
            order.hand_over(order.lane.down, order.lane.up)
        job = _Job(functools.partial(device_calls.run_checked, mover.comm, call, options, order))
        mover.comm.timeout = context.timeout
        mover.put(job)
        context.ran(collective.name, choice.algorithm.name, call.draft.nbytes, tick)
        return job

    return launch


def start(
    comm: Any, context: MPIContext, collective: Collective, arguments: Arguments, options: Options, found: OnDevice
) -> MPI.Request:  # fmt: skip
    """Start a non-blocking call, whose check has ``found`` an array on a GPU."""
    job = _launcher(comm, context, collective, arguments, options, found, f"I{collective.name}")()
    made = DeviceRequest(job.grequest)
    made._job = job
    return made


def init(
    comm: Any, context: MPIContext, collective: Collective, arguments: Arguments, options: Options, found: OnDevice
) -> MPI.Prequest:  # fmt: skip
    """Make a persistent call, whose check has ``found`` an array on a GPU."""
    made = PersistentDeviceRequest()
    made._launch = _launcher(comm, context, collective, arguments, options, found, f"{collective.method}_init")
    return made
