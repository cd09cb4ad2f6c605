"""SIGTERM and SIGUSR1 as flags."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Signals:
    """While its block runs, SIGTERM and SIGUSR1 only set ``received``, to their number; then the old handlers return.

    Python lets the main thread alone set handlers: in another thread the block changes nothing. Nor does it change a
    handler that was not set by Python, since it could not be set again.
    """

    WATCHED = (signal.SIGTERM, signal.SIGUSR1)

    def __init__(self) -> None:
        self.received = 0
        self._previous: dict[signal.Signals, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def __enter__(self) -> Signals:
        self.received = 0
        if threading.current_thread() is threading.main_thread():
            for watched in self.WATCHED:
                if (previous := signal.getsignal(watched)) is not None:
                    signal.signal(watched, self._note)
                    self._previous[watched] = previous
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for watched, previous in self._previous.items():
            signal.signal(watched, previous)
        self._previous.clear()
