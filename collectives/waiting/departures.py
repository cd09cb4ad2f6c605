"""Detection of ranks that a call waits for in vain, because their process or their program has ended."""

from __future__ import annotations

import time
from typing import Any

from ..diagnostics.exit_notes import Reader
from .host import Host

__all__ = ["Departures"]

GRACE = 2.0  # seconds after which a rank that seems to have ended counts as ended,
HANDLERS = 15.0  # and while handlers of its program (atexit) may still make calls
CLOSING = 0.2  # seconds by which a process that ends may close its files before it counts as ended


class Departures:
    """What one wait knows of ranks whose process or program has ended."""

    def __init__(self, context: Host):
        self._context = context
        self._readers: dict[int, Reader] = {}
        self._since: dict[tuple[int, str], float] = {}  # when a rank was first seen to have ended, and how

    def why_not(self, rank: int, run: Any, surely: bool) -> str | None:
        """Why ``rank`` will not take part in ``run``, as text, or None as long as it may.

        ``surely``: the run is known to wait for the rank; otherwise the rank may have done its part already.
        """
        context = self._context
        near = context.neighbours.get(rank)
        reader = self._readers.get(rank)
        if near is not None and reader is None:
            reader = self._readers[rank] = Reader(near.pid, near.note)
        note = None if reader is None else reader.read()
        if note is not None:
            final = note.final or context.has_ended(rank)
            patience = GRACE if final or note.how.startswith("raised ") else HANDLERS
            return self._unless_begun(rank, run, note.how, note.begun.get(context.identity), final, patience)
        if context.has_ended(rank):
            return f"rank {rank} died ({context.end_of(rank)})" if surely else None
        told = context.left.get(rank)
        if told is not None:
            return self._unless_begun(rank, run, told.left, told.begun, final=False)
        if surely and reader is not None and not reader.runs_on():
            return self._for_long(rank, "runs another program now (by exec)", CLOSING)
        return None

    def _unless_begun(
        self, rank: int, run: Any, how: str, begun: int | None, final: bool, patience: float = GRACE
    ) -> str | None:  # fmt: skip
        """A rank that ended its program has begun so many calls, and does not begin any more.

        A call that the rank has begun may still end by itself: it has failed only if it is known to wait for the rank.
        Calls of persistent requests have no numbers. ``how`` is the text returned, after the rank's number.
        """
        number = run.call().number
        never = begun is not None and number is not None and number > begun
        if never and final:
            return f"rank {rank} {how}"
        if not never and not (final and self._waits_for(rank, run)):
            return None
        return self._for_long(rank, how, patience)

    def _waits_for(self, rank: int, run: Any) -> bool:
        """Whether ``run`` is known to wait for ``rank``; making a communicator waits for all of its ranks."""
        if run.plan is None and run.call().number is None:
            return rank in (run.ranks or ())
        return rank in self._context.behind(run)

    def _for_long(self, rank: int, how: str, seconds: float) -> str | None:
        """What ``rank`` did, as text, if that was first seen more than ``seconds`` ago; else None."""
        since = self._since.setdefault((rank, how), time.monotonic())
        return f"rank {rank} {how}" if time.monotonic() - since > seconds else None

    def close(self) -> None:
        """Close the files that this object has opened; the wait is over."""
        for reader in self._readers.values():
            reader.close()
