"""Memory of messages under way: it is not freed before they are complete, whatever error ends the work with them.

A message to a rank that has given up may still come: its sender is late, or sends in MPI_Finalize.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterable
from typing import Any, TypeVar

from .deaths import is_death

__all__ = ["hold", "kept_for_ever", "release", "settle"]

T = TypeVar("T")


def kept_for_ever(what: T) -> T:
    """`what`, whose memory is never freed, not even when the interpreter ends: MPI is finalized after that."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
    return what


_held: dict[int, object] = kept_for_ever({})
_numbers = itertools.count()


def hold(*memory: object) -> int:
    """Keep the memory of messages that are begun now, or their requests, until `release` of the number returned."""
    number = next(_numbers)
    _held[number] = memory
    return number


def release(number: int) -> None:
    """The messages of that number are complete."""
    _held.pop(number, None)


def settle(number: int, requests: Iterable[Any]) -> None:
    """Release what can be: the `requests` are of a communicator that was revoked (ULFM), so all should have ended."""
    if all([_over(request) for request in requests]):
        release(number)


def _over(request: Any) -> bool:
    try:
        return bool(request.Test())
    except Exception as error:
        if not is_death(error):
            raise
        return True
