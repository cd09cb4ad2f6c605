"""Named tuples as JSON. Reading checks every value against the declared type, since any process may have written it."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

__all__ = ["decode", "encode"]

_LONGEST = 1 << 63  # integers must fit in C's int64_t


def encode(record: tuple[Any, ...]) -> bytes:
    """The JSON of a named tuple. Its values may be None, bool, int, str, bytes, lists, tuples, sets, dicts with keys of
    type str, and named tuples."""
    return json.dumps(_plain(record)).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple, frozenset)):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def decode(kind: type, data: bytes) -> Any:
    """The named tuple of this class that the data hold. ValueError, which says what is wrong, if they hold none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"{_shown(data)} is not JSON") from None
    return _made(kind, value, kind.__name__)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _made(kind: Any, value: Any, where: str) -> Any:
    """A JSON value as a value of the type ``kind``; ``where`` is its place in the record, for errors."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # of a type and None
        (other,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else _made(other, value, where)
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*_each([hints[name] for name in kind._fields], value, where, kind._fields))
    if origin is tuple and arguments[-1] is Ellipsis and isinstance(value, list):
        arguments = arguments[:1] * len(value)
    if origin is tuple:
        return tuple(_each(arguments, value, where, range(len(arguments))))
    if origin in (list, frozenset) and isinstance(value, list):
        return origin(_each(arguments * len(value), value, where, range(len(value))))
    if origin is dict and isinstance(value, dict):
        return {key: _made(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _single(kind, value, where)


def _each(kinds: Any, values: Any, where: str, names: Iterable[Any]) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(kinds):
        raise ValueError(f"{where}: {_shown(values)} is not a list of {len(kinds)}")
    return [_made(kind, value, f"{where}.{name}") for kind, value, name in zip(kinds, values, names, strict=True)]


def _single(kind: Any, value: Any, where: str) -> Any:
    if kind is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError:
            raise ValueError(f"{where}: {_shown(value)} are not bytes") from None
    if type(value) is not kind or kind is int and not -_LONGEST <= value < _LONGEST:
        raise ValueError(f"{where}: {_shown(value)} is not {getattr(kind, '__name__', kind)}")
    return value
