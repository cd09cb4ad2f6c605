"""Groups of the node-local engine for persistent calls, and their reuse.

Ranks may start their persistent calls in different orders, so each persistent call has a group of its own, in which
calls are numbered separately. A group can be freed or used again only when no rank reads its flags any more, and no
rank knows that alone. So each rank records the groups it has finished with. When the next persistent call is made, the
ranks agree by an all-reduce which groups all of them have finished with; one is used again, and surplus ones are freed.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ..core import _core

__all__ = ["NodeGroup", "NodeGroups"]

SPARE = 4  # most idle groups that are kept for later persistent calls


class NodeGroup:
    """A group for one persistent call; the group is released when this object is deleted."""

    __slots__ = ("_back", "_number", "engine")

    def __init__(self, engine: _core.Node, number: int, back: deque[int]):
        self.engine = engine
        self._number = number
        self._back = back

    def __del__(self) -> None:
        self._back.append(self._number)  # without a lock, since the garbage collector may run this anywhere


class NodeGroups:
    """The groups of one communicator for persistent calls; all ranks have the same ones."""

    def __init__(self) -> None:
        self._engines: dict[int, _core.Node] = {}
        self._back: deque[int] = deque()
        self._idle: set[int] = set()
        self._made = 0

    def engines(self) -> list[_core.Node]:
        """The node-local engine's side of all groups."""
        return list(self._engines.values())

    def idle(self) -> np.ndarray:
        """Number of runs that this rank began in each group, -1 if it still uses the group; second row: the negatives.

        The minimum of this array over all ranks shows which groups all ranks have finished with.
        """
        while self._back:
            self._idle.add(self._back.popleft())
        runs = [engine.runs if number in self._idle else -1 for number, engine in self._engines.items()]
        return np.array([runs, [-n for n in runs]])

    def again(self, least: np.ndarray) -> NodeGroup | None:
        """A group to use again, or None; ``least`` is the minimum over all ranks of what :meth:`idle` returned."""
        agreed = [number for number, (low, high) in zip(self._engines, least.T, strict=True) if low == -high >= 0]
        for number in agreed[1 + SPARE :]:
            del self._engines[number]
            self._idle.discard(number)
        if not agreed:
            return None
        self._idle.discard(agreed[0])
        return NodeGroup(self._engines[agreed[0]], agreed[0], self._back)

    def new(self, engine: _core.Node) -> NodeGroup:
        """Add a group for ``engine``, which all ranks have just made together."""
        self._made += 1
        self._engines[self._made] = engine
        return NodeGroup(engine, self._made, self._back)
