"""Named parts of a program on the timeline: ``with collectives.span("forward"): ...``."""

from __future__ import annotations

from typing import Any

__all__ = ["Off", "recorder", "span"]


class Off:
    """A part of the program while nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, *error: Any) -> None:
        """Nothing to do."""


class _On:
    """A part of the program that is recorded."""

    __slots__ = ("index", "name", "recorder")

    def __init__(self, recorder: Any, name: str):
        self.recorder = recorder
        self.name = name

    def __enter__(self) -> None:
        """Note its begin."""
        self.index = self.recorder.begin_span(self.name)

    def __exit__(self, *error: Any) -> None:
        """Note its end."""
        self.recorder.end_span(self.index)


_OFF = Off()
#: Where this process records a timeline, or None: a ``_core.Recorder``, set by :mod:`collectives.trace.recording`.
recorder: Any = None


def span(name: str) -> Off | _On:
    """A context manager that shows a part of the program on the timeline, under this name and nested as the program is.

    A local call. While no timeline is recorded (``COLLECTIVES_TRACE``, ``comm.trace``) it does nothing, in some 0.1 us.
    TypeError for a name that is not a string, once one is recorded.
    """
    return _OFF if recorder is None else _On(recorder, name)
