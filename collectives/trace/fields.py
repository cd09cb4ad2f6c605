"""Checks of the objects in JSON files, so that a file of another program is refused with a message."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any

__all__ = ["is_number", "lacks"]

LARGEST = 1 << 63  # of numbers, which become floats and sizes
NAMES = {str: "a string", dict: "an object", list: "a list", int: "an integer", float: "a number"}


def lacks(data: Any, kinds: Mapping[str, Any]) -> str | None:
    """Which field of an object is missing or wrong, as text; None if each of ``kinds`` has its type.

    ``float`` stands for any number, ``(str, NoneType)`` for a string or null. Numbers are finite and below 2^63.
    """
    if not isinstance(data, dict):
        return f"expected an object, not {type(data).__name__}"
    for name, kind in kinds.items():
        if name not in data:
            return f"{name} is missing"
        value = data[name]
        if kind in (int, float):
            fits = is_number(value) and (kind is float or isinstance(value, int))
        else:
            fits = isinstance(value, kind)
        if not fits:
            first, *others = kind if isinstance(kind, tuple) else (kind,)
            return f"{name}: expected {NAMES[first]}{' or null' if NoneType in others else ''}"
    return None


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number below 2^63."""
    return isinstance(value, (int, float)) and -LARGEST < value < LARGEST
