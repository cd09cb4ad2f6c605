"""Requests of non-blocking and persistent collectives: MPI generalized requests that MPI's own waits accept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from mpi4py import MPI

from . import _core
from .diagnosis import Call, signature

if TYPE_CHECKING:
    from .checks import PendingCheck
    from .context import Context, Run

__all__ = ["Flight", "HandedOver", "HandedOverForGood", "NodeFlight", "PersistentRequest", "Request", "ShortCall"]


class ShortCall(NamedTuple):
    """A call of the node-local engine that took the short way; it is waited for as a run is."""

    plan: _core.Node | _core.NodeCall
    buffers: Any
    number: int | None

    @property
    def begin(self) -> int:
        """The time counter when it began."""
        return self.plan.since

    def call(self) -> Call:
        """Number, type signature, op and root."""
        elements, dtype, op, root = self.plan.signature
        made = signature(self.plan.call[0], "shm", elements, dtype, op, root)
        return made._replace(number=self.number)

    def __str__(self) -> str:
        collective, nbytes = self.plan.call
        return f"{collective} (shm, {nbytes} bytes)"


_lock = threading.Lock()  # a program may have a thread for each communicator


class _Flying:
    """A collective under way: it keeps the communicator and the buffers, whatever becomes of the request.

    They are given back when it has landed: by ``Wait`` or ``Test`` of its request, else by a later call of the library.
    """

    __slots__ = ()
    context: Any
    run: Any
    holder: Any
    check: PendingCheck | None  # the exchange before it
    record: tuple[_core.Log, int] | None  # on a timeline
    abandoned: bool  # the request was freed by the program before the end

    if TYPE_CHECKING:

        @property
        def core(self) -> _core.Queued:
            """What is waited for."""

        def land(self) -> None:
            """Let go of what it held."""

    def go_on(self) -> None:
        """Wait to the end, however long it takes; raises what ended the collective early."""
        begin = _core.ticks() if self.record is not None else 0
        try:
            if not self.core.done:
                self.context.check()
            if self.check is not None:
                self.check.ended(wait=True)
            self.context.wait(self.run, self.core)
        except BaseException as e:
            self.context.fail(self.run, e)
        if self.record is not None:
            self.record[0].waited(self.record[1], begin)
        self.sweep()

    def test(self) -> bool:
        """Move the collective on; whether it has ended. Raises what ended it early."""
        try:
            landed = (self.check is None or self.check.ended(wait=False)) and self.core.wait(False, 0)
        except BaseException as e:
            self.context.fail(self.run, e)
        if landed:
            self.sweep()
        return landed

    def abandon(self) -> bool:
        """Have MPI's request freed at the end; False if the end is past."""
        with _lock:
            self.abandoned = self in _core.flights()  # type: ignore[misc]
        return self.abandoned

    def _land(self) -> None:
        if self.abandoned:
            MPI.Request.fromhandle(self.core.handle).Free()
        error = self.core.error()
        if self.record is not None:
            self.record[0].end(self.record[1], self.core.ended, error is not None)
        if error is None:
            self.land()
        else:
            self.context.note(self.run, error)
            self.holder = None

    @staticmethod
    def sweep() -> None:
        """Give back what belongs to collectives that have ended."""
        if not _core.flights():
            return
        with _lock:
            landed = [flight for flight in list(_core.flights()) if flight.done and _core.take(flight)]
        for flight in landed:
            flight._land()


class Flight(_Flying):
    """A run of a plan that goes on by itself."""

    def __init__(self, context: Context, run: Run, holder: Any, then: Callable[[], None] | None = None):
        """``then`` runs after the last step and before anybody sees the end, in whichever thread that is."""
        self.context, self.run, self.holder = context, run, holder
        self.check = self.record = None
        self.abandoned = False
        task = run.plan if then is None else _core.Followed(run.plan, then)
        self._core = _core.Request(task, context.library)
        _core.flights().add(self)

    @property
    def core(self) -> _core.Queued:
        """What is waited for."""
        return self._core

    @property
    def handle(self) -> int:
        """Of MPI's generalized request."""
        return self._core.handle

    @property
    def done(self) -> bool:
        """Whether the collective has ended."""
        return self._core.done

    def finish(self) -> None:
        """Wait to the end; raises what ended the collective early."""
        self.go_on()

    def land(self) -> None:
        """Let go of what it held."""
        self.run.release()
        self.holder = None

    @staticmethod
    def of(context: object) -> list[Any]:
        """What is under way on a communicator."""
        Flight.sweep()
        return [flight for flight in list(_core.flights()) if flight.context is context]


class NodeFlight(_core.NodeCall, _Flying):
    """A call of the node-local engine without a plan of the communicator's: a short or a persistent one."""

    __slots__ = ()
    check = None

    @property
    def core(self) -> _core.Queued:
        """What is waited for."""
        return self

    @property
    def run(self) -> ShortCall:
        """The call, as those who wait for it describe it."""
        return ShortCall(self, self.buffers, self.number)


class _Waits:
    """Waiting that moves the collective itself, rather than wait for the progress thread to do so."""

    _flight: Flight | NodeFlight | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete."""
        if self._flight is not None:
            self._flight.finish()
        return super().Wait(status)  # type: ignore[misc]

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete; moves it on."""
        if self._flight is not None and not self._flight.test():
            return False
        return super().Test(status)  # type: ignore[misc]

    def Cancel(self) -> None:
        """Collectives cannot be cancelled (MPI standard, section 3.8.4)."""
        raise MPI.Exception(MPI.ERR_REQUEST)

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the collective is complete."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether the collective is complete, and None."""
        return self.Test(status), None


class Request(_Waits, MPI.Request):  # type: ignore[misc]
    """Request of a non-blocking collective."""

    def __new__(cls, flight: Flight | NodeFlight | None = None) -> Request:
        """Take over the generalized request of a collective under way."""
        request = super().__new__(cls)
        if flight is not None:
            _set_handle(request, flight.handle)
            request._flight = flight
        return request

    def Free(self) -> None:
        """Give up the request; the collective goes on to its end."""
        if self._flight is not None and self != MPI.REQUEST_NULL and self._flight.abandon():
            _set_handle(self, MPI.REQUEST_NULL.handle)  # not all MPIs let a generalized request be freed while active
        else:
            super().Free()
        self._flight = None


class PersistentRequest(_Waits, MPI.Prequest):  # type: ignore[misc]
    """A collective that was set up once and can be started any number of times."""

    _launch: Callable[[], Flight | NodeFlight] | None

    def __new__(cls, launch: Callable[[], Flight | NodeFlight] | None = None) -> PersistentRequest:
        """``launch`` starts one run."""
        request = super().__new__(cls)
        request._launch = launch
        return request

    def Start(self) -> None:
        """Begin a run; the one before must be complete."""
        if self._launch is None:
            raise ValueError("this persistent request has been freed")
        if self._flight is not None:
            if not self._flight.done:
                raise ValueError("this persistent request is under way already")
            if self != MPI.REQUEST_NULL:
                self.Wait()
        self._flight = self._launch()
        _set_handle(self, self._flight.handle)

    def Free(self) -> None:
        """Give up the plan, after the run under way if there is one."""
        if self._flight is not None:
            self.Wait()
        self._launch = self._flight = None


class _Keeps:
    """A request of MPI's own, which keeps the buffers: mpi4py's does not for reductions (seen with 4.1.2).

    ``Wait`` obeys the communicator's timeout.
    """

    _owners: Any
    _context: Context
    _run: Any
    _record: tuple[_core.Log, int] | None = None  # on a timeline

    @classmethod
    def of(cls, request: MPI.Request, owners: Any, context: Context, run: Any) -> Any:
        """The same request; ``run`` describes it to those who wait."""
        make: Any = cls
        made = make(request)
        made._owners, made._context, made._run = owners, context, run
        run.request = made
        return made

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete."""
        begin = _core.ticks() if self._record is not None else 0
        if self._context.timeout is not None:
            self._context.wait_for_mpi(self._run)
        done = super().Wait(status)  # type: ignore[misc]
        if self._record is not None:
            log, index = self._record
            log.waited(index, begin)
            log.end(index, _core.ticks())
        return done

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete."""
        done = super().Test(status)  # type: ignore[misc]
        if done and self._record is not None:
            self._record[0].end(self._record[1], _core.ticks())
        return done

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the collective is complete."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether the collective is complete, and None."""
        return self.Test(status), None


class HandedOver(_Keeps, MPI.Request):  # type: ignore[misc]
    """Request of a non-blocking collective that the MPI library serves."""


class HandedOverForGood(_Keeps, MPI.Prequest):  # type: ignore[misc]
    """Request of a persistent collective that the MPI library serves."""

    _started: Callable[[int], tuple[_core.Log, int] | None]

    def Start(self) -> None:
        """Begin a run; the one before must be complete."""
        begin = _core.ticks()
        super().Start()
        self._record = self._started(begin)


def _set_handle(request: MPI.Request, handle: int) -> None:
    _core.write_handle(MPI._addressof(request), MPI._sizeof(request), handle)


_core.know_flights(NodeFlight, Request)
