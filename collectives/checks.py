"""``COLLECTIVES_CHECK=1``: before each call all ranks tell each other what they call, and all of them see a difference.

A record of fixed length from each rank, in an all-gather of its own: the call in words, and where in the program it is.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

import numpy as np

from . import _core
from .diagnosis import MOST, position
from .errors import CollectiveMismatch
from .plans import Shape

if TYPE_CHECKING:
    from .calls import Draft
    from .context import Context
    from .flight import Flight
    from .plans import Run
    from .select import Choice

__all__ = ["Check", "PendingCheck"]

WORDS, TYPES, PLACE = 120, 80, 96  # bytes of a record


class Check:
    """The exchange before one call."""

    def __init__(self, context: Context, name: str, draft: Draft, choice: Choice):
        """``name`` tells the call from others that no rank may make together with it."""
        self._context = context
        call = draft.shape.call(choice.algorithm.name)._replace(collective=name)
        if draft.collective.vector and not draft.collective.agreed:  # each rank knows but its own lengths
            call = call._replace(elements=0)
        self._call = call
        parts = draft.parts
        if not draft.collective.reduces:
            call = call._replace(dtype="")
        words = str(call).partition(", ")[2]
        if draft.shape.cuts is not None and draft.collective.agreed:
            words += f", blocks {zlib.crc32(repr(draft.shape.cuts).encode()):08x}"
        place = position(threading.get_ident())
        if len(parts.encode()) > TYPES:
            parts = f"{parts[: TYPES - 12]}... {zlib.crc32(parts.encode()):08x}"
        record = _fit(words, WORDS) + _fit(parts, TYPES) + _fit(place[-PLACE:], PLACE)
        self._mine = np.frombuffer(record, np.uint8)
        self._all = np.empty((context.size, len(record)), np.uint8)
        self.number = 0
        self._shape = Shape("allgather", 0, self._all.size, 1, -1, None, False)

    def start(self) -> Run:
        """Begin the exchange; it counts as part of the call that it checks, and is described as that one."""
        context = self._context
        choice = context.choose("allgather", self._all.nbytes, None, True, False)
        run = context.acquire(choice, self._shape)
        tag = context.tag(choice, self._shape)
        run.start(_core.address(self._mine), _core.address(self._all), tag, (self._mine, self._all))
        self.number = context.begun
        run.stands_for = self._call._replace(number=self.number)
        context.count(-1)
        return run

    def compare(self) -> None:
        """CollectiveMismatch if the ranks' calls differ; only when the exchange has ended."""
        if (self._all[:, :WORDS] == self._mine[:WORDS]).all() and self._types_match():
            return
        told = [(_text(row[:WORDS]), _text(row[WORDS:-PLACE]), _text(row[-PLACE:])) for row in self._all[:MOST]]
        parties = "".join(
            f"\n  rank {rank}: {words}{parts and f', of {parts}'}, at {place}"
            for rank, (words, parts, place) in enumerate(told)
        )
        context = self._context
        raise CollectiveMismatch(
            f"call {self.number} on rank {context.rank} of {context.size}: the ranks' calls differ{parties}"
        )

    def _types_match(self) -> bool:
        """Whether all ranks move elements of the same basic types; bytes match any."""
        types = self._all[:, WORDS:-PLACE]
        known = types[types[:, 0] != 0]
        return bool((known == known[:1]).all())


def _fit(text: str, length: int) -> bytes:
    return text.encode()[:length].ljust(length, b"\0")


def _text(row: np.ndarray) -> str:
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


class PendingCheck:
    """The exchange before a non-blocking call: under way in front of it."""

    def __init__(self, check: Check, flight: Flight):
        self._check = check
        self._flight = flight

    def ended(self, wait: bool) -> bool:
        """Whether the exchange has ended, after waiting for it or not; CollectiveMismatch if the calls differ."""
        if not self._flight.done:
            if not wait:
                return False
            self._flight.finish()
        self._check.compare()
        return True
