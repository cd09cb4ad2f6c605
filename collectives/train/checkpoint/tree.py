"""Nested states as JSON: dicts, lists and tuples of numbers, strings, None, and of arrays, which lie elsewhere.

Numbers, strings, True, False and None stand for themselves. Everything else is an object with one key that says what
it is: ``{"dict": [[key, value], ...]}``, ``{"list": [...]}``, ``{"tuple": [...]}``, ``{"float": "nan"}``,
``{"array": ...}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .arrays import is_array
from .sharded import Shard
from .slices import Slice

DEPTH = 64  # a state that contains itself has no end


def pack(value: Any, keep: Callable[[str, Any], Any], path: str = "", depth: int = 0) -> Any:
    """`value` as JSON. ``keep(path, leaf)`` gives the JSON value of an array, a tensor, a `Shard` or a `Slice`.

    `path` names the place of a value in messages and files: keys and indices, joined by "/". TypeError for values of
    other types, and for keys that are neither strings nor integers. ValueError for a nesting without end.
    """
    if depth > DEPTH:
        raise ValueError(f"{path[:80]}...: nested more than {DEPTH} deep")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Shard | Slice) or is_array(value):
        return {"array": keep(path, value)}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"{path}: the key {key!r} is neither a string nor an integer")
        return {"dict": [[k, pack(v, keep, f"{path}/{k}", depth + 1)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [pack(v, keep, f"{path}/{i}", depth + 1) for i, v in enumerate(value)]}
    raise TypeError(f"{path}: a {type(value).__name__} cannot be saved; a state has dicts, lists, arrays and numbers")


def unpack(node: Any, give: Callable[[Any], Any]) -> Any:
    """The value that `pack` made `node` of. ``give(kept)`` gives the array for what ``keep`` returned.

    ValueError for JSON that `pack` does not make.
    """
    if node is None or isinstance(node, bool | str | int | float):
        return node
    if isinstance(node, dict) and len(node) == 1:
        ((kind, inner),) = node.items()
        if kind == "array":
            return give(inner)
        if kind == "float" and inner in ("nan", "inf", "-inf"):
            return float(inner)
        if kind == "dict" and isinstance(inner, list) and all(_is_entry(entry) for entry in inner):
            return {key: unpack(value, give) for key, value in inner}
        if kind in ("list", "tuple") and isinstance(inner, list):
            values = [unpack(value, give) for value in inner]
            return values if kind == "list" else tuple(values)
    raise ValueError(f"{str(node)[:80]} is no part of a state")


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str | int)
