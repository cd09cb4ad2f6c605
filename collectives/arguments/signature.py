"""What a call is, for messages to people and comparisons: collective, length, type, op, root, and number."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core import _core
from ..schedules import registry
from ..schedules.registry import EXCHANGES, PRIVATE_LENGTHS

__all__ = ["Call", "differ", "signature", "type_name"]


_OWN_LENGTHS = PRIVATE_LENGTHS | set(EXCHANGES)  # collectives of which a rank knows some lengths only
SWAPPED = 64  # added to the number of a basic type whose bytes are in the other byte order


class Call(NamedTuple):
    """One rank's call.

    ``number`` counts the calls of the communicator. It is None for persistent requests, which ranks may start in any
    order, and for point-to-point messages, whose ``algorithm`` is "message". Calls that move no data, such as creating
    a communicator, have an empty ``algorithm``. If nothing is reduced, ``op`` is empty, ``elements`` counts bytes, and
    ``dtype`` is their element type if known. ``history`` is a hash of this and earlier calls by messages, 0 if unknown.
    """

    number: int | None
    collective: str
    algorithm: str
    elements: int
    dtype: str
    op: str
    root: int | None
    history: int = 0

    def __str__(self) -> str:
        number = "a persistent call, " if self.number is None else f"call {self.number}, "
        if not self.algorithm:
            return f"{number}{self.collective}" if self.number else self.collective
        if not self.collective:
            return f"{number}of the node-local engine"
        words = [f"{'' if self.algorithm == 'message' else number}{self.collective}"]
        if self.collective != "barrier":
            moved = f"bytes of {self.dtype}" if self.dtype else "bytes"
            words[0] += f" of {self.elements} {(self.dtype if self.op else moved) or 'bytes'}"
        words += [self.op] if self.op else []
        words += [f"root {self.root}"] if self.root is not None else []
        return f"{', '.join(words)} ({self.algorithm})"


def signature(collective: str, algorithm: str, elements: int, dtype: int, op: Any, root: int) -> Call:
    """A Call from codes of the compiled core; ``op``: a code, -1 or None if nothing is reduced, else a user's op."""
    name = _core.OPS[op].upper() if isinstance(op, int) and op >= 0 else "" if op in (None, -1) else "a user-defined op"
    dtype_name = type_name(dtype)
    if collective == "barrier":
        elements, dtype_name, name = 0, "", ""
    rooted = registry.spec(collective).rooted
    return Call(None, collective, algorithm, elements, dtype_name, name, root if rooted else None)


def type_name(number: int) -> str:
    """Name of the basic type ``number``; "" for a negative number."""
    if number < 0:
        return ""
    return _core.DTYPES[number] if number < SWAPPED else f"byte-swapped {_core.DTYPES[number - SWAPPED]}"


def differ(one: Call, other: Call) -> bool:
    """Whether two ranks' calls with the same number cannot be the same collective call."""
    if one.number is None or one.number != other.number:
        return False
    if not one.collective or not other.collective:  # only the algorithm is known
        return one.algorithm != other.algorithm
    if not _OWN_LENGTHS.isdisjoint(call.collective.removesuffix("_init") for call in (one, other)):
        one, other = one._replace(elements=0), other._replace(elements=0)
    if not (one.op or other.op) and not (one.dtype and other.dtype):  # bytes match elements of any type
        one, other = one._replace(dtype=""), other._replace(dtype="")
    if not one.history or not other.history:
        one, other = one._replace(history=0), other._replace(history=0)
    return one != other
