"""The library's side of a group of processes on one node without MPI: the node-local engine alone."""

from __future__ import annotations

import contextlib
import json
from typing import NamedTuple

from ..arguments.shape import Shape
from ..core import _core
from ..errors import CollectiveError
from ..schedules.registry import find
from ..selection.policy import Choice, Rules
from ..system import heap
from ..waiting.dump import dump_on_signal
from . import bootstrap
from .context import Context
from .plans import Plan

__all__ = ["LocalContext"]


class _Apart(NamedTuple):
    why: str | None


class _Area(NamedTuple):
    offset: int | None


class LocalContext(Context):
    """A group of ranks without MPI; making one raises CollectiveError on all ranks if they do not share memory."""

    #: Kept here, since other ranks write to its memory as long as the group lives.
    messages: _core.PointToPoint | None = None

    def __init__(self, rank: int, size: int, gather: bootstrap.Gather, timeout: float | None = None):
        super().__init__(rank, size)
        self.timeout, self.background = timeout, True
        dump_on_signal()
        known = self.introduce(gather, _forced() if rank == 0 else b"")
        rules = _rules(json.loads(known.settings))
        self.join(known, gather)
        apart = [told.why for told in gather(_Apart(self.apart)) if told.why is not None]
        if apart:
            raise CollectiveError(
                f"without MPI all processes must be on one node: {apart[0]}; start the program with mpiexec or srun"
            )
        self.register()
        self.adopt(rules)

    def open_messages(self, gather: bootstrap.Gather) -> _core.PointToPoint:
        """What sends messages between two ranks of the group. All ranks call this together, once.

        CollectiveError on all ranks if one has no shared memory for that.
        """
        own, area = heap.process_heap(), None
        if own is not None:
            with contextlib.suppress(MemoryError):
                area = _core.HeapBlock(own, _core.point_to_point_bytes(self.size), True)
        offsets = [told.offset for told in gather(_Area(None if area is None else area.offset))]
        if area is None or self.node is None or None in offsets:
            raise CollectiveError(f"rank {offsets.index(None)} has no shared memory left for messages")
        self.messages = _core.PointToPoint(self.node, offsets, area)
        return self.messages

    def give_up_messages(self, receives_only: bool = False) -> None:
        """Give up the messages of the group. ``receives_only``: receives that no message has reached."""
        if self.messages is not None:
            self.messages.give_up(receives_only)

    def is_busy(self) -> bool:
        """Whether messages are under way."""
        return self.messages is not None and self.messages.pending > 0

    def choose(self, collective: str) -> Choice:
        """The choice of ``"shm"``, the only algorithm without MPI."""
        return Choice(find(collective, "shm"), None, "all ranks share a node")

    def make_plan(self, choice: Choice, shape: Shape, engine: _core.Node | None) -> Plan:
        """Make a plan that executes ``shape`` in the group ``engine`` (default: the communicator's)."""
        return _core.NodePlan(engine or self.node, shape)

    def tag(self, choice: Choice, shape: Shape) -> int:
        """0: the node-local engine sends no messages."""
        return 0


def _forced() -> bytes:
    """The algorithms by collective that rank 0's environment asks for, as JSON; an error is under the key ``""``."""
    try:
        return json.dumps(Rules.from_environment().forced).encode()
    except ValueError as e:
        return json.dumps({"": str(e)}).encode()


def _rules(forced: dict[str, str]) -> Rules:
    """The rules for all ranks, from rank 0's environment; ValueError if that is wrong or asks for other algorithms."""
    if "" in forced:
        raise ValueError(forced[""])
    others = sorted(set(forced.values()) - {"shm"})
    if others:
        raise ValueError(f"COLLECTIVES_ALGORITHM: without MPI there is the algorithm 'shm' only, not {others[0]!r}")
    return Rules(forced=forced)
