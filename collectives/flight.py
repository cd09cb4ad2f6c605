"""Collectives under way by themselves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core, ending, lifetime
from .diagnosis import Call, signature
from .watching import Wait

if TYPE_CHECKING:
    from .checks import PendingCheck
    from .plans import Run
    from .waiting import Waiting

__all__ = ["Flight", "NodeFlight", "ShortCall"]

_lock = threading.RLock()  # a program may have a thread for each communicator, and handlers of signals


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
    abandoned: Callable[[int], None] | None  # frees the request, which the program did before the end

    if TYPE_CHECKING:

        @property
        def core(self) -> _core.Queued:
            """What is waited for."""

        def land(self) -> None:
            """Let go of what it held."""

    def go_on(self, timeout: float | None, begin: int) -> None:
        """Wait, since a tick, to the end, or to a timeout (default: the communicator's).

        Raises what ended the collective early.
        """
        ending.refuse_if_forked()
        run = self.run  # the wait for it ends with it
        try:
            if not self.core.done or self.core.error() is not None:
                self.context.check()
            if self.check is not None:
                self.check.ended(wait=True)
            self.context.wait(run, self.core, timeout)
        except BaseException as e:
            self.context.fail(run, e)
        if self.record is not None:
            self.record[0].waited(self.record[1], begin)
        self.sweep()

    def test(self) -> bool:
        """Move the collective on; whether it has ended. Raises what ended it early."""
        ending.refuse_if_forked()
        try:
            landed = (self.check is None or self.check.ended(wait=False)) and self.core.wait(False, 0)
            if not landed:
                self.core.tested = True
                self.context.glance(self.run, self.core)
            elif self.context.tested:
                self.context.end_glances(self.core)
            if not landed or not isinstance(self, NodeFlight):
                self.context.look_for_quitters(self.run)
        except BaseException as e:
            self.context.fail(self.run, e)
        if landed:
            self.sweep()
        return landed

    def abandon(self, free: Callable[[int], None]) -> bool:
        """Have MPI's request, given by its handle, freed at the end; False if the end is past."""
        if ending.forked():  # it is the parent's
            return True
        with _lock:
            self.abandoned = free if self in _core.flights() else None  # type: ignore[misc]
        return self.abandoned is not None

    def _land(self) -> None:
        if self.abandoned is not None:
            self.abandoned(self.core.handle)
        error = self.core.error()
        if self.record is not None:
            self.record[0].end(self.record[1], self.core.ended, error is not None)
        if error is None:
            self.land()
        else:
            given_up = isinstance(error, _core.GivenUpError)
            self.context.note(self.run, self.context.given_up(self.run) if given_up else error)
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

    def __init__(
        self, context: Waiting, run: Run, holder: Any, then: Callable[[], Any] | None = None,
        library: _core.MPILibrary | None = None,
    ):  # fmt: skip
        """``then`` runs after the last step and before anybody sees the end, in whichever thread that is.

        With a library, there is the handle of a generalized request of MPI's.
        """
        self.context, self.run, self.holder = context, run, holder
        self.check = self.record = self.abandoned = None
        task = run.plan if then is None else _core.Followed(run.plan, then)
        with Wait(run, context.timeout, context.waits):  # it may be moved on at once, and hang in MPI
            self._core = _core.Request(task, library)
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

    def finish(self, timeout: float | None = None) -> None:
        """Wait to the end, or to a timeout (default: the communicator's); raises what ended the collective early."""
        self.go_on(timeout, _core.ticks() if self.record is not None else 0)

    def claim(self) -> bool:
        """Whether this is the first time that it is claimed."""
        return self._core.claim()

    def let_go(self) -> bool:
        """Let go of the buffers, if the call has ended well; False while only MPI knows of the end."""
        if self.done and self.core.error() is None:
            self.run.buffers = None
        return self.done or self.core.ended == 0

    def land(self) -> None:
        """Let go of what it held."""
        self.run.release()
        self.holder = None

    @staticmethod
    def of(context: object) -> list[Any]:
        """What is under way on a communicator."""
        Flight.sweep()
        return [flight for flight in list(_core.flights()) if flight.context is context]


class _Compiled(_Flying):
    """One that is itself what is waited for, begun without an exchange before it."""

    __slots__ = ()
    check = None

    @property
    def core(self) -> Any:
        """What is waited for."""
        return self


class NodeFlight(_core.NodeCall, _Compiled):
    """A call of the node-local engine without a plan of the communicator's: a short or a persistent one."""

    __slots__ = ()

    @property
    def run(self) -> ShortCall:
        """The call, as those who wait for it describe it."""
        return ShortCall(self, self.buffers, self.number)


class PlanFlight(_core.PlanCall, _Compiled):
    """A call like an earlier one, by a cached plan."""

    __slots__ = ()

    @property
    def run(self) -> Run:
        """The call, as those who wait for it describe it."""
        made: Run = self.context.run_of(self.cached, self.plan, self.buffers)
        made.number, made.history = self.number, self.history
        return made


def _leave_to_the_parent() -> None:
    """A forked child keeps what its parent has under way as it is: to give it back would be to touch MPI."""
    for flight in list(_core.flights()):
        lifetime.keep(flight)
    _core.flights().clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
_core.know_flights(NodeFlight, PlanFlight)
