"""Memory of messages under way: it is not freed before they are complete, whatever error ends the work with them.

A message to a rank that has given up may still come: its sender is late, or sends in MPI_Finalize.
"""

from __future__ import annotations

import ctypes
from typing import TypeVar

__all__ = ["hold", "kept_for_ever", "release"]

T = TypeVar("T")


def kept_for_ever(what: T) -> T:
    """`what`, whose memory is never freed, not even when the interpreter ends: MPI is finalized after that."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))
    return what


_held: dict[int, object] = kept_for_ever({})


def hold(owner: object) -> None:
    """Keep `owner`, which has the memory of messages that are begun now, until `release`."""
    _held[id(owner)] = owner


def release(owner: object) -> None:
    """The messages of `owner` are complete."""
    _held.pop(id(owner), None)
