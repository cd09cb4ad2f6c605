"""Checks of what ``load_state_dict`` is given, before it changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["check_array", "check_mapping", "fields"]


def check_mapping(what: str, state: Any) -> None:
    """Raise TypeError, which begins with `what`, unless `state` is a mapping."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{what}: a state is a dict that state_dict() has returned, not {_brief(state)}")


def fields(what: str, state: Any, /, **kinds: Callable[[Any], Any]) -> list[Any]:
    """The values that `state` has for the keys of `kinds`, each made by what is given there, in that order.

    Raises TypeError unless `state` is a mapping, ValueError for a value that is missing or cannot be made. The messages
    begin with `what`.
    """
    check_mapping(what, state)
    if missing := [key for key in kinds if key not in state]:
        raise ValueError(f"{what}: the state has no {', '.join(missing)}; has something else saved it?")
    found = []
    for key, kind in kinds.items():
        try:
            found.append(kind(state[key]))
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"{what}: the state's {key} is impossible: {_brief(state[key])}") from None
    return found


def check_array(what: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError, which begins with `what`, unless `array` is one of numbers, or a list, and has this shape."""
    try:
        dtype = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
        found = tuple(np.shape(array))
    except ValueError:  # a list of lists of different lengths
        raise ValueError(f"{what}: the state has no array, but {_brief(array)}") from None
    if isinstance(dtype, np.dtype) and dtype.kind in "OSUmM":
        raise ValueError(f"{what}: the state has no array of numbers, but {_brief(array)}")
    if found != shape:
        raise ValueError(f"{what} has the shape {shape}, in the state {found}")


def _brief(thing: Any) -> str:
    text = repr(thing)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(thing).__name__})"
