"""What rank 0 reads from its environment for all ranks of a communicator."""

from __future__ import annotations

import os

from . import trace
from .select import Rules

__all__ = ["agreed"]


def agreed() -> tuple[Rules, float | None, bool, tuple[str | None, int]] | Exception:
    """Rank 0's rules, default timeout, whether calls are checked, file and length of a timeline, or what is wrong: all
    ranks are to raise it."""
    check = os.environ.get("COLLECTIVES_CHECK", "0")
    if check not in ("", "0", "1"):
        return ValueError(f"COLLECTIVES_CHECK={check!r}: expected 0 or 1")
    try:
        text = os.environ.get("COLLECTIVES_TIMEOUT")
        timeout = float(text) if text else None
        if timeout is not None and not timeout > 0:
            raise ValueError("not a positive number of seconds")
    except ValueError as e:
        return ValueError(f"COLLECTIVES_TIMEOUT={text!r}: {e}")
    try:
        timeline = trace.from_environment()
    except ValueError as e:
        return e
    try:
        return Rules.from_environment(), timeout, check == "1", timeline
    except ValueError as e:
        return ValueError(f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}")
