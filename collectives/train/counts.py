"""Arguments that count something."""

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
