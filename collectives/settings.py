"""What rank 0 reads from its environment for all ranks of a communicator."""

from __future__ import annotations

import os

from . import machine, mpilib, trace, tuning
from .limits import stall_from_environment, timeout_from_environment
from .select import Rules

__all__ = ["agreed"]


Timeline = tuple[str | None, int]
Limits = tuple[float | None, float | None]


def agreed() -> tuple[Rules, tuning.Table | None, Limits, bool, Timeline] | Exception:
    """Rank 0's rules, selection table, timeout, when long waits are reported, whether calls are checked, timeline.

    Of a timeline file and length. Or what is wrong: all ranks are to raise it.
    """
    check = os.environ.get("COLLECTIVES_CHECK", "0")
    if check not in ("", "0", "1"):
        return ValueError(f"COLLECTIVES_CHECK={check!r}: expected 0 or 1")
    try:
        rules = Rules.from_environment()
    except ValueError as e:
        return ValueError(f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}")
    try:
        table = tuning.from_environment(machine.kind(), mpilib.description())
        limits = timeout_from_environment(), stall_from_environment()
        return rules, table, limits, check == "1", trace.from_environment()
    except ValueError as e:
        return e
