"""Groups of the node-local engine that persistent calls have for themselves, one after the other.

Ranks may start their persistent calls in different orders, so each needs an order of calls of its own: a group. A group
can be taken down only when no rank reads its flags any more, which no rank knows alone. So groups that are done with
are noted, and the next persistent call, where ranks exchange a few words anyway, uses one again that all ranks are done
with, and takes down those that are too many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from . import _core

__all__ = ["Lease", "Leases"]

SPARE = 4  # groups that are kept for the next persistent calls


class Lease:
    """A group for one persistent call, until nobody holds this object any more."""

    __slots__ = ("_back", "_number", "engine")

    def __init__(self, engine: _core.Node, number: int, back: deque[int]):
        self.engine = engine
        self._number = number
        self._back = back

    def __del__(self) -> None:
        self._back.append(self._number)  # no lock: garbage collectors come here


class Leases:
    """The groups of one communicator."""

    def __init__(self) -> None:
        self._engines: dict[int, _core.Node] = {}
        self._back: deque[int] = deque()
        self._idle: set[int] = set()
        self._made = 0

    def idle(self) -> set[tuple[int, int]]:
        """Groups that this rank is done with, and the calls it made in each."""
        while self._back:
            self._idle.add(self._back.popleft())
        return {(number, self._engines[number].calls) for number in self._idle}

    def again(self, idle: list[set[tuple[int, int]]], drop: Callable[[_core.Node], Any]) -> Lease | None:
        """A group that all ranks are done with, or None; ``idle`` has every rank's.

        ``drop`` is called with those that are taken down.
        """
        agreed = sorted(number for number, _ in set.intersection(*idle))
        for number in agreed[1 + SPARE :]:
            drop(self._engines.pop(number))
            self._idle.discard(number)
        if not agreed:
            return None
        self._idle.discard(agreed[0])
        return Lease(self._engines[agreed[0]], agreed[0], self._back)

    def new(self, engine: _core.Node) -> Lease:
        """A group made now, by all ranks together."""
        self._made += 1
        self._engines[self._made] = engine
        return Lease(engine, self._made, self._back)
