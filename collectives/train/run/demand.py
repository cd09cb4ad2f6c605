"""Samples of ranks that take them as they have time, up to the ends of these ranks' steps."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from ..data.loader import Loader
from .strategies import Strategies


def to_ends_of_steps(data: Loader, strategies: Strategies, comm: Any) -> Generator[tuple[Any, ...], None, None]:
    """The batches with which this rank completes a step of which it has made micro-batches; none if it has not.

    When the iterator ends, all ranks are between two steps, or at the end of the epoch, and `data` is at the same
    position on all. Collective over `comm`.
    """
    waits = not strategies.accumulating
    if not waits:
        for batch in data.on_demand(len(data), strategies.take):
            yield batch
            if not strategies.accumulating:
                break
    strategies.meet()
    if waits:
        strategies.take(object())  # of the others' series, which is over: the next one has the same number on all ranks
    data.meet(comm)
