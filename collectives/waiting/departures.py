"""Ranks that a call waits for and that will not come: their process has ended, or their program has."""

from __future__ import annotations

import time
from typing import Any

from ..diagnostics.exit_notes import Reader
from .host import Host

__all__ = ["Departures"]

GRACE = 2.0  # seconds for which what is not certain must have been so
CLOSING = 0.2  # seconds by which a process that ends may close its files before it counts as ended


class Departures:
    """What one wait has seen of ranks that leave."""

    def __init__(self, context: Host):
        self._context = context
        self._readers: dict[int, Reader] = {}
        self._since: dict[int, float] = {}

    def why_not(self, rank: int, run: Any, surely: bool) -> str | None:
        """Why a rank will not take part in a run, in words, or None while it may.

        ``surely``: the run is known to wait for it; else it may have done its part.
        """
        context = self._context
        near = context.neighbours.get(rank)
        reader = self._readers.get(rank)
        if near is not None and reader is None:
            reader = self._readers[rank] = Reader(near.pid, near.note)
        note = None if reader is None else reader.read()
        if note is not None:
            final = note.final or context.has_ended(rank)
            return self._unless_begun(rank, run, note.how, note.begun.get(context.identity), final)
        if context.has_ended(rank):
            return f"rank {rank} died ({context.end_of(rank)})" if surely else None
        told = context.left.get(rank)
        if told is not None:
            return self._unless_begun(rank, run, told.left, told.begun, final=False)
        if surely and reader is not None and not reader.runs_on() and self._for_long(rank, CLOSING):
            return f"rank {rank} runs another program now (by exec)"
        return None

    def _unless_begun(self, rank: int, run: Any, how: str, begun: int | None, final: bool) -> str | None:
        """A rank that ended its program has begun so many calls, and does not begin any more.

        Calls that it has begun end by themselves, if they can: only one that is known to wait for the rank has failed.
        Those of persistent requests have no numbers.
        """
        number = run.call().number
        never = begun is not None and number is not None and number > begun
        if never and final:
            return f"rank {rank} {how}"
        if not never and not (final and self._waits_for(rank, run)):
            return None
        return f"rank {rank} {how}" if self._for_long(rank, GRACE) else None

    def _waits_for(self, rank: int, run: Any) -> bool:
        """Whether a run is known to wait for a rank: the making of a communicator waits for all that take part."""
        if run.plan is None and run.call().number is None:
            return rank in (run.ranks or ())
        return rank in self._context.behind(run)

    def _for_long(self, rank: int, seconds: float) -> bool:
        """Whether what is asked about a rank was so for more than some seconds already."""
        since = self._since.setdefault(rank, time.monotonic())
        return time.monotonic() - since > seconds

    def close(self) -> None:
        """The wait is over."""
        for reader in self._readers.values():
            reader.close()
