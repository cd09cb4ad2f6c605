"""The error for a second call on a communicator, which takes one call at a time."""

from __future__ import annotations

import threading
from typing import Any

from ..core import _core
from ..diagnostics.diagnosis import outer_position, position
from ..errors import CollectiveError

__all__ = ["refuse"]


def refuse(context: Any) -> None:
    """Raise CollectiveError for a call made while another one is under way; nothing has been sent for it.

    If the call under way was left by an exception, or its thread has ended, free the turn and return instead.
    """
    holder, here = context.turn.holder, threading.get_ident()
    place = outer_position() if holder == here else position(holder) if holder in _core.current_frames() else None
    if place is None and not _runs(context, holder):
        context.turn.drop()
        return
    place = place or position(holder)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    who = "this thread" if holder == here else f"another thread ({names.get(holder, holder)})"
    why = ", from where a signal handler, a finalizer or an op came here" if holder == here else ""
    raise CollectiveError(
        f"rank {context.rank}: {who} is in {_call(context, holder)} on this communicator, at {place}{why}; "
        "a communicator takes one call at a time"
    )


def _runs(context: Any, thread: int) -> bool:
    """Whether a call of a thread is under way, which compiled code may have made that has no frame of Python's."""
    return context.running is not None or any(wait.thread == thread for wait in context.listed())


def _call(context: Any, thread: int) -> str:
    """Name of the collective that ``thread`` is in, if it is known."""
    waits = [wait for wait in context.listed() if wait.thread == thread]
    return str(waits[-1].run.call().collective) if waits else "a collective"
