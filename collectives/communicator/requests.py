"""Requests of non-blocking and persistent collectives: MPI generalized requests, which MPI's own waits accept."""

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

__all__ = [
    "UNDER_WAY", "HandedOver", "HandedOverForGood", "InLowerCase", "PersistentRequest", "Request", "set_handle",
]  # fmt: skip


UNDER_WAY = "this persistent request is under way already: Wait comes before the next Start"
_HANDLE = MPI._sizeof(MPI.Request)  # bytes of MPI's handle
_starting = threading.RLock()


class InLowerCase:
    """mpi4py's methods in lower case, which return what was received: nothing, of a collective."""

    Wait: Callable[..., bool]
    Test: Callable[..., bool]

    def wait(self, status: MPI.Status | None = None) -> None:
        """Wait until the collective is complete."""
        self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, None]:
        """Whether the collective is complete, and None."""
        return self.Test(status), None


class _Waits(InLowerCase):
    """Waits and tests that progress the collective in the calling thread, rather than leave it to the progress thread.

    MPI frees a request when a wait for it ends. If several threads wait for one request, only the thread that claims
    the operation calls MPI's wait.
    """

    _operation: _core.Operation | None = None

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete; raises the error that ended it early. Returns True."""
        operation = self._operation
        if operation is not None:
            operation.complete()
            if not operation.claim(bool(self)):
                self._freed_elsewhere()
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Progress the collective and return whether it is complete; raises the error that ended it early."""
        operation = self._operation
        if operation is not None:
            if not operation.test():
                return False
            if not operation.claim(bool(self)):
                self._freed_elsewhere()
        return super().Test(status)

    def _freed_elsewhere(self) -> None:
        """Wait up to 1 s until the thread that has claimed the operation has freed the request.

        That thread does not free the request if a signal handler raised an exception in between.
        """
        end = time.monotonic() + 1
        while self != MPI.REQUEST_NULL and time.monotonic() < end:
            time.sleep(1e-5)

    def Cancel(self) -> None:
        """Raise MPI.Exception: collectives cannot be cancelled (MPI standard, section 3.8.4)."""
        raise MPI.Exception(MPI.ERR_REQUEST)


class Request(_Waits, MPI.Request):  # type: ignore[misc]
    """Request of a non-blocking collective; compiled code makes most of them (``request_of``)."""

    __slots__ = ("_operation",)

    _operation: _core.Operation | None

    def __new__(cls, operation: _core.Operation | None = None) -> Request:
        """A request object with the generalized request of ``operation``, which is under way; null for None."""
        request = super().__new__(cls)
        request._operation = None
        if operation is not None:
            _core.write_handle(MPI._addressof(request), _HANDLE, operation.handle)
            request._operation = operation
        return request

    def Free(self) -> None:
        """Release the request and set it to null; the collective is still completed."""
        operation = self._operation if self != MPI.REQUEST_NULL else None
        if operation is not None and (ending.forked() or operation.abandon(_free)):
            set_handle(self, MPI.REQUEST_NULL.handle)  # not all MPIs let a generalized request be freed while active
        else:
            super().Free()
        self._operation = None


class PersistentRequest(_Waits, MPI.Prequest):  # type: ignore[misc]
    """Request of a persistent collective, which can be started any number of times."""

    _launch: Callable[[], _core.Operation] | None
    _place: int  # the address of MPI's handle

    def __new__(cls, launch: Callable[[], _core.Operation] | None = None) -> PersistentRequest:
        """``launch`` starts the collective once and returns its operation."""
        request = super().__new__(cls)
        request._launch = launch
        request._place = MPI._addressof(request)
        return request

    def Start(self) -> None:
        """Start the collective; ValueError if the previous start has not been waited for, or after ``Free``."""
        with _starting:  # another thread may call Start, too
            if self._launch is None:
                raise ValueError("this persistent request has been freed")
            if self:  # its handle is not null
                if self._operation is not None:
                    self._operation.context.check()
                raise ValueError(UNDER_WAY)
            self._operation = operation = self._launch()
            _core.write_handle(self._place, _HANDLE, operation.handle)

    @classmethod
    def Startall(cls, requests: list[MPI.Prequest]) -> None:
        """Start all ``requests`` in order; MPI.Prequest.Startall takes MPI's own requests only."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Wait for the start under way, unless the communicator is broken, and release the plan."""
        operation = self._operation
        if operation is not None and operation.context.broken is None and not ending.forked():
            self.Wait()
            operation.drop()
        self._launch = self._operation = None

    def free(self) -> None:
        """Call :meth:`Free` if the request has not been freed; the handle is null between two starts, too."""
        if self._launch is not None:
            self.Free()


class _Keeps(InLowerCase):
    """A request of MPI's own that keeps its buffers alive: mpi4py does not for reductions (seen with 4.1.2).

    ``Wait`` obeys the communicator's timeout. ``Wait`` and ``Test`` raise PeerFailure if a rank has died.
    """

    _owners: Any
    _context: MPIContext
    _run: Any
    _record: tuple[_core.Log, int] | None = None  # log and index of its record on a timeline
    _check: PendingCheck | None = None  # the comparison of ranks' calls that precedes it

    @classmethod
    def of(cls, request: MPI.Request, owners: Any, context: MPIContext, run: Any) -> Any:
        """An object of this class for ``request``; it keeps ``owners`` alive, and ``run`` describes the call."""
        make: Any = cls
        made = make(request)
        made._owners, made._context, made._run = owners, context, run
        return made

    def Wait(self, status: MPI.Status | None = None) -> bool:
        """Wait until the collective is complete; raises the error that ended it early. Returns True."""
        ending.refuse_if_forked()
        begin = _core.ticks() if self._record is not None else 0
        self._has_passed(wait=True)
        if self:  # its handle is not null
            self._run.request = self
            self._context.wait_for_mpi(self._run)
            self._run.request = None  # else the two, and the buffers, would wait for the garbage collector
        with self._context.blamed(self._run):
            done = super().Wait(status)
        self._let_go()
        if self._record is not None:
            log, index = self._record
            log.waited(index, begin)
            log.end(index, _core.ticks())
        return done

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the collective is complete; raises the error that ended it early."""
        ending.refuse_if_forked()
        with self._context.blamed(self._run):
            done = self._has_passed(wait=False) and super().Test(status)
        if not done:
            self._run.request = self  # a look may test it once more
            self._context.glance_at_mpi(self._run)
            self._run.request = None
            return False
        self._context.end_glances(self._run)
        self._let_go()
        if self._record is not None:
            self._record[0].end(self._record[1], _core.ticks())
        return True

    def Free(self) -> None:
        """Release the request by MPI_Request_free; CollectiveError in a forked child."""
        ending.refuse_if_forked()
        super().Free()  # type: ignore[misc]

    def _has_passed(self, wait: bool) -> bool:
        """Whether all ranks are known to make this call; ``wait``: wait for that. CollectiveMismatch if they differ.

        After a mismatch MPI may still write what it has begun to move, so the run, which is kept, keeps this request.
        """
        if self._check is None:
            return True
        try:
            passed = self._check.ended(wait)
        except BaseException as e:
            self._run.request = self
            self._context.fail(self._run, e)
        if passed:
            self._check = None
        return passed

    def _let_go(self) -> None:
        """Drop the buffers, which belong to the program again."""


class HandedOver(_Keeps, MPI.Request):  # type: ignore[misc]
    """Request of a non-blocking collective that the MPI library executes."""

    def _let_go(self) -> None:
        self._owners = self._run.buffers = None


class HandedOverForGood(_Keeps, MPI.Prequest):  # type: ignore[misc]
    """Request of a persistent collective that the MPI library executes."""

    _started: Callable[[int], tuple[_core.Log, int] | None]

    def Start(self) -> None:
        """Start the collective; the previous start must be complete.

        CollectiveError if the communicator is freed or broken.
        """
        ending.refuse_if_forked()
        if self._context.internal == MPI.COMM_NULL:  # some MPIs would crash
            raise CollectiveError("this communicator has been freed")
        self._context.check()
        begin = _core.ticks()
        self._run.began = time.monotonic()
        super().Start()
        self._record = self._started(begin)

    def Free(self) -> None:
        """Release the request and its buffers."""
        super().Free()
        self._started = lambda tick: None  # the former function keeps the buffers alive
        self._owners = self._run.buffers = None


def _free(handle: int) -> None:
    MPI.Request.fromhandle(handle).Free()


def set_handle(request: MPI.Request, handle: int) -> None:
    """Let a request object have another of MPI's handles."""
    _core.write_handle(MPI._addressof(request), _HANDLE, handle)
