"""What ranks agree on after every step, without waiting for each other."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import numpy as np

from ..checkpoint.saver import Vote

PATIENCE = 1.0  # seconds


class News(NamedTuple):
    """Of all ranks after a step: a signal that any has got (0: none), whether a checkpoint is due, their votes, and
    whether any is between the micro-batches of a step."""

    signal: int
    due: bool
    saver: Vote
    between: bool = False


class Votes:
    """One all-reduce of five integers for each step, which may be waited for a step later.

    By then it is complete unless a rank is a whole step late, so it adds no waiting to steps that communicate anyway.
    """

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._vector = np.zeros(5, np.int64)
        self._cast = False
        self._request: Any = None

    def cast(self, mine: News) -> None:
        """Tell the others `mine`. Collective; there is one vote at a time."""
        self._vector[:] = mine.signal, mine.due, mine.saver.failed, -mine.saver.written, mine.between
        self._cast = True
        if self.comm.size > 1:
            from mpi4py import MPI

            self._request = self.comm.Iallreduce(MPI.IN_PLACE, self._vector, op=MPI.MAX)

    def result(self) -> News | None:
        """The news of all ranks at the last `cast`, the same everywhere; None if nothing was cast since."""
        request, self._request = self._request, None
        if request is not None:
            request.Wait()
        if not self._cast:
            return None
        self._cast = False
        signal, due, failed, written, between = self._vector.tolist()
        return News(signal, bool(due), Vote(bool(failed), -written), bool(between))

    def abandon(self) -> None:
        """Give up a vote after an error or a ``break``. Other ranks may never take part in it, so it is not waited for
        long; if they do, and all go on, the next `result` waits for it and is None."""
        self._cast = False
        end = time.monotonic() + PATIENCE
        with contextlib.suppress(RuntimeError):  # of a communicator that is broken
            while self._request is not None and time.monotonic() < end:
                if self._request.Test():
                    self._request = None
