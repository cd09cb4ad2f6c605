"""Requests of non-blocking and persistent collectives: MPI generalized requests that MPI's own waits accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpi4py import MPI

from . import _core

if TYPE_CHECKING:
    from .context import Context, Run

__all__ = ["PersistentRequest", "Request"]


class _Waits:
    """Waiting that moves the collective itself, rather than wait for the progress thread to do so."""

    _flight: Flight | None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete."""
        if self._flight is not None:
            self._flight.wait()
        return super().Wait(status)  # type: ignore[misc]

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete; moves it on."""
        if self._flight is not None:
            self._flight.core.wait(False, 0)
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


class Flight:
    """A collective under way. It outlives the user's request object, and gives the plan back when it has landed."""

    _all: list[Flight] = []

    def __init__(self, context: Context, run: Run):
        self.context = context
        self.run = run
        self.core = _core.Request(run.plan, context.library)
        Flight._all.append(self)

    @property
    def landed(self) -> bool:
        """Whether the collective has ended."""
        return self.core.done

    def wait(self) -> None:
        """Wait to the end; raises what ended the collective early."""
        self.context.wait(self.run, self.core.wait)

    @classmethod
    def sweep(cls) -> None:
        """Give back the plans of collectives that have ended."""
        under_way = []
        for flight in cls._all:
            if flight.landed:
                flight.run.release()
            else:
                under_way.append(flight)
        cls._all[:] = under_way

    @classmethod
    def of(cls, context: Context) -> list[Flight]:
        """What is under way on a communicator."""
        cls.sweep()
        return [flight for flight in cls._all if flight.context is context]


class Request(_Waits, MPI.Request):
    """Request of a non-blocking collective."""

    def __new__(cls, flight: Flight | None = None) -> Request:
        """Take over the generalized request of a collective under way."""
        request = super().__new__(cls, MPI.Request.fromhandle(flight.core.handle) if flight else None)
        request._flight = flight
        return request


class PersistentRequest(_Waits, MPI.Prequest):
    """A collective that was set up once and can be started any number of times."""

    def __new__(cls, launch: Callable[[], Flight] | None = None) -> PersistentRequest:
        """``launch`` starts one run."""
        request = super().__new__(cls)
        request._launch = launch
        request._flight = None
        return request

    def Start(self) -> None:
        """Begin a run; the one before must be complete."""
        if self._launch is None:
            raise ValueError("this persistent request has been freed")
        if self._flight is not None and not self._flight.landed:
            raise ValueError("this persistent request is under way already")
        self._flight = self._launch()
        _core.write_handle(MPI._addressof(self), MPI._sizeof(self), self._flight.core.handle)

    def Free(self) -> None:
        """Give up the plan, after the run under way if there is one."""
        if self._flight is not None:
            self.Wait()
        self._launch = self._flight = None
