"""How long calls may wait, as users say it; infinity is :data:`LONGEST`."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["checked_timeout", "stall_from_environment", "timeout_from_environment"]

LONGEST = 1e9  # seconds, some thirty years: in nanoseconds it is an integer of C's


def timeout_from_environment() -> float | None:
    """The timeout of calls that have none of their own; None: they have none. ValueError where it is no number."""
    text = os.environ.get("COLLECTIVES_TIMEOUT")
    return _seconds("COLLECTIVES_TIMEOUT", text) if text else None


def stall_from_environment() -> float | None:
    """Seconds after which a wait without a timeout is reported; None: never. ValueError where it is no number."""
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
    """Seconds as a float, or None; ValueError or TypeError where it is not a positive number."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) and not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout: expected seconds, not {type(timeout).__name__}")
    if not float(timeout) > 0:
        raise ValueError(f"timeout: {timeout} is not a positive number of seconds")
    return min(float(timeout), LONGEST)
