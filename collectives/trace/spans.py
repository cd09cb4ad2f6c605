"""Named parts of a program on the timeline: ``with collectives.span("forward"): ...``."""

from __future__ import annotations

from typing import Any

__all__ = ["Off", "recorder", "span"]


class Off:
    """The context manager of :func:`span` while nothing is recorded."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *error: Any) -> None:
        """Do nothing."""


class _On:
    """The context manager of :func:`span` while a timeline is recorded."""

    __slots__ = ("index", "name", "recorder")

    def __init__(self, recorder: Any, name: str):
        self.recorder = recorder
        self.name = name

    def __enter__(self) -> None:
        """Record the start of the span."""
        self.index = self.recorder.begin_span(self.name)

    def __exit__(self, *error: Any) -> None:
        """Record the end of the span."""
        self.recorder.end_span(self.index)


_OFF = Off()
#: The ``_core.Recorder`` while this process records, else None; set by :mod:`collectives.trace.recording`.
recorder: Any = None


def span(name: str) -> Off | _On:
    """A context manager that shows a part of the program on the timeline as ``name``; spans may be nested.

    The call is local. While no timeline is recorded (``COLLECTIVES_TRACE``, ``comm.trace``) it does nothing, in about
    0.1 us. TypeError if ``name`` is not a string, but only while a timeline is recorded.
    """
    return _OFF if recorder is None else _On(recorder, name)
