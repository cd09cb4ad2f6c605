"""Requests of non-blocking and persistent collectives: MPI generalized requests that MPI's own waits accept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..core import _core
from ..errors import CollectiveError
from ..waiting import ending

if TYPE_CHECKING:
    from ..runtime.mpi_context import MPIContext
    from .checks import PendingCheck

__all__ = ["HandedOver", "HandedOverForGood", "PersistentRequest", "Request"]


_HANDLE = MPI._sizeof(MPI.Request)  # bytes of MPI's handle
_starting = threading.RLock()


class _Waits:
    """Waiting that moves the collective itself, rather than wait for the progress thread to do so.

    MPI frees a request when it is waited for. Of several threads that wait for the same one, MPI is asked by that which
    claims the operation.
    """

    _operation: _core.Operation | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete."""
        operation = self._operation
        if operation is not None:
            operation.complete()
            if not operation.claim():
                self._freed_elsewhere()
        return super().Wait(status)  # type: ignore[misc]

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete; moves it on."""
        operation = self._operation
        if operation is not None:
            if not operation.test():
                return False
            if not operation.claim():
                self._freed_elsewhere()
        return super().Test(status)  # type: ignore[misc]

    def _freed_elsewhere(self) -> None:
        """Wait for the thread that has claimed the operation, for as long as it may take to free the request.

        It does not free it where a handler's exception came between.
        """
        end = time.monotonic() + 1
        while self != MPI.REQUEST_NULL and time.monotonic() < end:
            time.sleep(1e-5)

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

    def __new__(cls, operation: _core.Operation | None = None) -> Request:
        """Take over the generalized request of a collective under way."""
        request = super().__new__(cls)
        if operation is not None:
            _core.write_handle(MPI._addressof(request), _HANDLE, operation.handle)
            request._operation = operation
        return request

    def Free(self) -> None:
        """Give up the request; the collective goes on to its end."""
        operation = self._operation if self != MPI.REQUEST_NULL else None
        if operation is not None and (ending.forked() or operation.abandon(_free)):
            _set_handle(self, MPI.REQUEST_NULL.handle)  # not all MPIs let a generalized request be freed while active
        else:
            super().Free()
        self._operation = None


class PersistentRequest(_Waits, MPI.Prequest):  # type: ignore[misc]
    """A collective that was set up once and can be started any number of times."""

    _launch: Callable[[], _core.Operation] | None
    _place: int  # the address of MPI's handle

    def __new__(cls, launch: Callable[[], _core.Operation] | None = None) -> PersistentRequest:
        """``launch`` starts one run."""
        request = super().__new__(cls)
        request._launch = launch
        request._place = MPI._addressof(request)
        return request

    def Start(self) -> None:
        """Begin a run; ValueError where the one before has not been waited for, as others may not have started anew."""
        with _starting:  # another thread may start it, too
            if self._launch is None:
                raise ValueError("this persistent request has been freed")
            if self:  # its handle is not null
                if self._operation is not None:
                    self._operation.context.check()
                raise ValueError("this persistent request is under way already: Wait comes before the next Start")
            self._operation = operation = self._launch()
            _core.write_handle(self._place, _HANDLE, operation.handle)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Begin a run of each; MPI.Prequest.Startall knows MPI's own requests only."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Give up the plan, after the run under way if there is one that can end."""
        if self._operation is not None and self._operation.context.broken is None and not ending.forked():
            self.Wait()
        self._launch = self._operation = None


class _Keeps:
    """A request of MPI's own, which keeps the buffers: mpi4py's does not for reductions (seen with 4.1.2).

    ``Wait`` obeys the communicator's timeout, and both name a rank that died.
    """

    _owners: Any
    _context: MPIContext
    _run: Any
    _record: tuple[_core.Log, int] | None = None  # on a timeline
    _check: PendingCheck | None = None  # the exchange before it

    @classmethod
    def of(cls, request: MPI.Request, owners: Any, context: MPIContext, run: Any) -> Any:
        """The same request; ``run`` describes it to those who wait."""
        make: Any = cls
        made = make(request)
        made._owners, made._context, made._run = owners, context, run
        run.request = made
        return made

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete."""
        ending.refuse_if_forked()
        begin = _core.ticks() if self._record is not None else 0
        self._has_passed(wait=True)
        if self._run.request is not None:
            self._context.wait_for_mpi(self._run)
        with self._context.blamed(self._run):
            done = super().Wait(status)  # type: ignore[misc]
        self._let_go()
        if self._record is not None:
            log, index = self._record
            log.waited(index, begin)
            log.end(index, _core.ticks())
        return done

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete."""
        ending.refuse_if_forked()
        with self._context.blamed(self._run):
            done = self._has_passed(wait=False) and super().Test(status)  # type: ignore[misc]
        if not done:
            self._context.glance_at_mpi(self._run)
            return False
        self._context.end_glances(self._run)
        self._let_go()
        if self._record is not None:
            self._record[0].end(self._record[1], _core.ticks())
        return True

    def Free(self) -> None:
        """Give up the request."""
        ending.refuse_if_forked()
        super().Free()  # type: ignore[misc]

    def _has_passed(self, wait: bool) -> bool:
        """Whether all ranks are known to make this call, after waiting for it or not; CollectiveMismatch if not."""
        if self._check is None:
            return True
        try:
            passed = self._check.ended(wait)
        except BaseException as e:
            self._context.fail(self._run, e)
        if passed:
            self._check = None
        return passed

    def _let_go(self) -> None:
        """The buffers are the program's again."""

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the collective is complete."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether the collective is complete, and None."""
        return self.Test(status), None


class HandedOver(_Keeps, MPI.Request):  # type: ignore[misc]
    """Request of a non-blocking collective that the MPI library serves."""

    def _let_go(self) -> None:
        self._owners = self._run.buffers = self._run.request = None


class HandedOverForGood(_Keeps, MPI.Prequest):  # type: ignore[misc]
    """Request of a persistent collective that the MPI library serves."""

    _started: Callable[[int], tuple[_core.Log, int] | None]

    def Start(self) -> None:
        """Begin a run; the one before must be complete. CollectiveError on a communicator that has been freed."""
        ending.refuse_if_forked()
        if self._context.internal == MPI.COMM_NULL:  # some MPIs crash
            raise CollectiveError("this communicator has been freed")
        begin = _core.ticks()
        self._run.began = time.monotonic()
        super().Start()
        self._record = self._started(begin)

    def Free(self) -> None:
        """Give up the call and its buffers."""
        super().Free()
        self._started = lambda tick: None  # the other one has the buffers
        self._owners = self._run.buffers = self._run.request = None


def _free(handle: int) -> None:
    MPI.Request.fromhandle(handle).Free()


def _set_handle(request: MPI.Request, handle: int) -> None:
    _core.write_handle(MPI._addressof(request), _HANDLE, handle)
