"""Groups of the node-local engine that persistent calls have for themselves, one after the other.

Ranks may start their persistent calls in different orders, so each needs an order of calls of its own: a group. A group
can be taken down only when no rank reads its flags any more, which no rank knows alone. So groups that are done with
are noted, and the next persistent call, where ranks exchange a few words anyway, uses one again that all ranks are done
with, and takes down those that are too many.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..core import _core

__all__ = ["NodeGroup", "NodeGroups"]

SPARE = 4  # groups that are kept for the next persistent calls


class NodeGroup:
    """A group for one persistent call, until nobody holds this object any more."""

    __slots__ = ("_back", "_number", "engine")

    def __init__(self, engine: _core.Node, number: int, back: deque[int]):
        self.engine = engine
        self._number = number
        self._back = back

    def __del__(self) -> None:
        self._back.append(self._number)  # no lock: garbage collectors come here


class NodeGroups:
    """The groups of one communicator; all ranks have the same ones."""

    def __init__(self) -> None:
        self._engines: dict[int, _core.Node] = {}
        self._back: deque[int] = deque()
        self._idle: set[int] = set()
        self._made = 0

    def engines(self) -> list[_core.Node]:
        """All groups."""
        return list(self._engines.values())

    def idle(self) -> np.ndarray:
        """For each group the calls this rank made in it, or -1 where it is not done with it; and the negatives.

        The least of all ranks' say which groups all ranks are done with.
        """
        while self._back:
            self._idle.add(self._back.popleft())
        calls = [engine.calls if number in self._idle else -1 for number, engine in self._engines.items()]
        return np.array([calls, [-c for c in calls]])

    def again(self, least: np.ndarray) -> NodeGroup | None:
        """A group that all ranks are done with, or None; ``least`` of what all ranks' :meth:`idle` returned."""
        agreed = [number for number, (low, high) in zip(self._engines, least.T, strict=True) if low == -high >= 0]
        for number in agreed[1 + SPARE :]:
            del self._engines[number]
            self._idle.discard(number)
        if not agreed:
            return None
        self._idle.discard(agreed[0])
        return NodeGroup(self._engines[agreed[0]], agreed[0], self._back)

    def new(self, engine: _core.Node) -> NodeGroup:
        """A group made now, by all ranks together."""
        self._made += 1
        self._engines[self._made] = engine
        return NodeGroup(engine, self._made, self._back)
