"""Waits that sleep: for operations that other threads progress."""

from __future__ import annotations

from ..core import _core
from .waiting import Waiting

__all__ = ["Asleep"]


class Asleep:
    """A wait for an operation that other threads progress: the progress thread, and threads that wait themselves."""

    def __init__(self, operation: _core.Operation):
        self.operation = operation

    def wait_for(self, context: Waiting, limit: float | None) -> None:
        """Sleep until the operation ends, for at most ``limit`` seconds, by default the communicator's timeout.

        The other ranks are looked at meanwhile. Raises CollectiveTimeout, PeerFailure or another CollectiveError.
        """
        try:
            context.wait(self.operation, limit, self)
        except BaseException as e:
            context.fail(self.operation, e)

    def wait(self, yield_at_once: bool, limit: int) -> bool:
        """Sleep for up to ``limit`` ns; whether the operation is complete."""
        return self.operation.sleep(limit)
