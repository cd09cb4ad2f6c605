"""Checks timeouts that users give, in seconds; infinity becomes :data:`LONGEST`."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["checked_timeout", "stall_from_environment", "timeout_from_environment"]

LONGEST = 1e9  # seconds, about thirty years; in nanoseconds it fits a 64-bit integer


def timeout_from_environment() -> float | None:
    """The default timeout, ``COLLECTIVES_TIMEOUT``, in seconds; None if it is not set. ValueError if it is invalid."""
    text = os.environ.get("COLLECTIVES_TIMEOUT")
    return _seconds("COLLECTIVES_TIMEOUT", text) if text else None


def stall_from_environment() -> float | None:
    """Seconds after which a wait without timeout is reported, ``COLLECTIVES_STALL`` (60); None for 0: never."""
    return _seconds("COLLECTIVES_STALL", os.environ.get("COLLECTIVES_STALL") or "60", zero=True) or None


def _seconds(name: str, text: str, zero: bool = False) -> float:
    try:
        seconds = float(text)
        if not (seconds > 0 or zero and seconds == 0):
            raise ValueError("not a number of seconds" if zero else "not a positive number of seconds")
    except ValueError as e:
        raise ValueError(f"{name}={text!r}: {e}") from None
    return min(seconds, LONGEST)


def checked_timeout(timeout: Any) -> float | None:
    """``timeout`` as a float, at most LONGEST, or None; TypeError or ValueError if it is not a positive number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) and not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout: expected seconds, not {type(timeout).__name__}")
    if not float(timeout) > 0:
        raise ValueError(f"timeout: {timeout} is not a positive number of seconds")
    return min(float(timeout), LONGEST)
