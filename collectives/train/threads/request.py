"""``Request``: a call of a communicator of threads that is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .job import Call, Group


class Request:
    """A call under way. `Wait` ends it; `Test` says whether it has ended. Either may be called again afterwards.

    ``timeout()`` is the longest wait in seconds, None for ever.
    """

    def __init__(
        self, group: Group, rank: int, call: Call, timeout: Callable[[], float | None], then: Callable[[Call], Any]
    ) -> None:
        self._group, self._rank, self._call, self._timeout, self._then = group, rank, call, timeout, then
        self._taken, self._result = False, None

    def Wait(self, status: Any = None) -> bool:
        """Wait until the call is complete. Raises what the blocking call would."""
        self.wait()
        return True

    def wait(self, status: Any = None) -> Any:
        """As `Wait`; returns the object that was received, None for other calls."""
        self._group.wait(self._rank, self._call, self._timeout())
        if not self._taken:
            self._taken, self._result = True, self._then(self._call)
        return self._result

    def Test(self, status: Any = None) -> bool:
        """Whether the call is complete; if not, raises PeerFailure if a rank has failed or will not come any more."""
        with self._group.job.lock:
            if not self._call.done:
                self._group.look(self._rank, self._call)
                return False
        return self.Wait()
