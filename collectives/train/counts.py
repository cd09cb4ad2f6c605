"""Arguments that are numbers."""

from __future__ import annotations

import operator
from typing import Any


def count(name: str, value: Any, least: int = 1) -> int:
    """`value` as an integer. TypeError if it is none, ValueError if it is below `least`; both name the argument."""
    try:
        found = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if found < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return found


def real(name: str, value: Any) -> float:
    """`value` as a float. TypeError, which names the argument, if it is no number."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError):  # torch has RuntimeError for several elements
        raise TypeError(f"{name} must be a number, not {value!r}") from None
