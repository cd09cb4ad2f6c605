"""Collectives under way by themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from .checks import PendingCheck
    from .plans import Run
    from .waiting import Waiting

__all__ = ["Flight"]


class Flight:
    """A collective under way: it keeps the communicator, the plan and the buffers, whatever becomes of the request.

    They are given back when it has landed: by ``Wait`` or ``Test`` of its request, else by the next call of the
    library.
    """

    _all: set[Flight] = set()
    _lock = threading.Lock()  # a program may have a thread for each communicator

    def __init__(
        self, context: Waiting, run: Run, holder: Any, then: Callable[[], Any] | None = None,
        library: _core.MPILibrary | None = None,
    ):  # fmt: skip
        """``then`` runs after the last step and before anybody sees the end, in whichever thread that is.

        With a library, :attr:`core` has the handle of a generalized request of MPI's.
        """
        self.context = context
        self.run = run
        self.holder = holder
        self.check: PendingCheck | None = None  # the exchange before it
        self.record: tuple[_core.Log, int] | None = None  # on a timeline
        self.abandoned: Callable[[int], None] | None = None  # frees the request, which the program did before the end
        task = run.plan if then is None else _core.Followed(run.plan, then)
        self.core = _core.Request(task, library)
        with Flight._lock:
            Flight._all.add(self)

    @property
    def landed(self) -> bool:
        """Whether the collective has ended."""
        return self.core.done

    def wait(self, timeout: float | None = None) -> None:
        """Wait to the end, or to a timeout (default: the communicator's); raises what ended the collective early."""
        begin = _core.ticks() if self.record is not None else 0
        try:
            if not self.landed:
                self.context.check()
            if self.check is not None:
                self.check.ended(wait=True)
            self.context.wait(self.run, self.core, timeout)
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

    def abandon(self, free: Callable[[int], None]) -> bool:
        """Have MPI's request, given by its handle, freed at the end; False if the end is past."""
        with Flight._lock:
            self.abandoned = free if self in Flight._all else None
        return self.abandoned is not None

    @classmethod
    def sweep(cls) -> None:
        """Give back what belongs to collectives that have ended."""
        if not cls._all:
            return
        with cls._lock:
            landed = [flight for flight in cls._all if flight.landed]
            cls._all.difference_update(landed)
        for flight in landed:
            flight._land()

    def _land(self) -> None:
        if self.abandoned is not None:
            self.abandoned(self.core.handle)
        error = self.core.error()
        if self.record is not None:
            self.record[0].end(self.record[1], self.core.ended, error is not None)
        if error is None:
            self.run.release()
        else:
            self.context.note(self.run, error)
        self.holder = None

    @classmethod
    def of(cls, context: object) -> list[Flight]:
        """What is under way on a communicator."""
        cls.sweep()
        with cls._lock:
            return [flight for flight in cls._all if flight.context is context]
