"""``COLLECTIVES_CHECK=1``: before each call all ranks compare their calls, and all of them raise if the calls differ.

The comparison is an all-gather of a record of fixed length: the call as text, its types, and its place in the program.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ..arguments.shape import Shape
from ..arguments.signature import Call
from ..core import _core
from ..diagnostics.diagnosis import MOST, position
from ..errors import CollectiveMismatch
from ..selection.policy import Choice, Demand

if TYPE_CHECKING:
    from ..arguments.calls import Draft
    from ..runtime.mpi_context import MPIContext

__all__ = ["Check", "PendingCheck"]

WORDS, TYPES, PLACE = 120, 80, 96  # bytes of the three fields of a record: call, basic types, file and line


class Check:
    """The comparison of ranks' calls before one call."""

    def __init__(self, context: MPIContext, name: str, draft: Draft, choice: Choice):
        """``name`` is the name to compare: blocking, non-blocking and persistent forms have different ones."""
        self._context = context
        call = draft.shape.call(choice.algorithm.name)._replace(collective=name)
        if draft.collective.vector and not draft.collective.agreed:  # each rank knows only its own lengths
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
        record = _fit(words, WORDS) + _fit(parts, TYPES) + _fit(place, PLACE, -PLACE)
        self._mine = np.frombuffer(record, np.uint8)
        self._all = np.empty((context.size, len(record)), np.uint8)
        self.number = 0
        self._shape = Shape("allgather", 0, self._all.size, 1, -1, None, False)

    def start(self) -> _core.Operation:
        """Begin the all-gather; it is a part of the call that it checks, and other ranks are told of that call."""
        operation, where, tag = self._operation()
        try:
            operation.start(*where, tag, (self._mine, self._all))
            return self._begun(operation)
        except BaseException as e:  # a signal handler's, say: the all-gather may have begun
            self._context.fail(operation, e)
            raise

    def queue(self, holder: object) -> _core.Operation:
        """Begin the all-gather before a non-blocking call, which keeps ``holder`` alive while it is under way."""
        operation, where, tag = self._operation()
        try:
            operation.bind(*where, tag, (self._mine, self._all), holder).queue()
            return self._begun(operation)
        except BaseException as e:
            self._context.fail(operation, e)
            raise

    def _operation(self) -> tuple[_core.Operation, tuple[int, int], int]:
        context = self._context
        choice = context.choose(Demand("allgather", self._all.nbytes, mpi="never", ruled=False))
        operation = context.operation(choice, self._shape)
        where = _core.address(self._mine), _core.address(self._all)
        return operation, where, context.tag(choice, self._shape)

    def _begun(self, operation: _core.Operation) -> _core.Operation:
        context = self._context
        self.number = context.begun
        operation.stands_for = self._call._replace(number=self.number)
        context.elsewhere -= 1
        return operation

    def compare(self) -> None:
        """Raise CollectiveMismatch if the ranks' calls differ; to be called when the all-gather has ended."""
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
        """Whether all ranks move elements of the same basic types; bytes match any type."""
        types = self._all[:, WORDS:-PLACE]
        known = types[types[:, 0] != 0]
        return bool((known == known[:1]).all())


def _fit(text: str, length: int, begin: int = 0) -> bytes:
    """The ``length`` bytes of a text from ``begin`` on, which may be negative."""
    return text.encode(errors="backslashreplace")[begin:][:length].ljust(length, b"\0")


def _text(row: np.ndarray) -> str:
    return row.tobytes().rstrip(b"\0").decode(errors="replace")


class PendingCheck:
    """The comparison of ranks' calls before a non-blocking call, under way in the queue ahead of the call."""

    def __init__(self, check: Check, exchange: _core.Operation):
        self._check = check
        self._exchange = exchange

    def call(self) -> Call:
        """The call that is compared, as other ranks are told of it."""
        call: Call = self._exchange.stands_for
        return call

    def ended(self, wait: bool) -> bool:
        """Whether the all-gather has ended; ``wait``: wait for it. CollectiveMismatch if the calls differ."""
        if not self._exchange.done and not wait:
            return False
        self._exchange.complete()  # raises the error that has ended it early
        self._check.compare()
        return True
