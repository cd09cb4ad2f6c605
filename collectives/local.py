"""The library's side of a group of processes on one node where there is no MPI: the node-local engine alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core, bootstrap, inquiry, node
from .errors import CollectiveError
from .flight import Flight
from .plans import Plans, Run, Shape
from .registry import find
from .select import LOCAL, Choice, Rules
from .telling import dump_on_signal

__all__ = ["LocalContext"]


class _Apart(NamedTuple):
    why: str | None


class LocalContext(Plans):
    """What :class:`collectives.context.Context` is with MPI; made by all ranks of the group together.

    ``exchange`` gathers a named tuple from all ranks on all ranks: a store does, or anything else that the processes
    have in common. CollectiveError, on all ranks, where they do not share memory.
    """

    letters = None  # all ranks are neighbours

    def __init__(self, rank: int, size: int, exchange: bootstrap.Gather, timeout: float | None = None):
        super().__init__()
        self.rank, self.size, self.timeout = rank, size, timeout
        self.broken: str | None = None
        self.heard, self.left = {}, {}
        dump_on_signal()
        Flight.sweep()
        offer, area = node.offer()
        mine = bootstrap.hello(rank, size, offer, _forced() if rank == 0 else b"")
        known = bootstrap.introduce(rank, mine, exchange(mine))
        self.identity, rules = known.identity, _rules(json.loads(known.settings))
        self.group, engine = node.join(rank, size, known.offers, area, exchange)
        apart = [
            told.why for told in exchange(_Apart(node.why_apart(size, self.group, engine))) if told.why is not None
        ]
        if apart or engine is None:
            raise CollectiveError(
                f"without MPI all processes must be on one node: {apart[0]}; start the program with mpiexec or srun"
            )
        self.neighbours = known.neighbours
        inquiry.register(self.identity, self)
        self._set_up(engine, rules, size > known.usable_cores)

    def _set_up(self, engine: _core.Node, rules: Rules, crowded: bool) -> None:
        self.node, self.yield_at_once, engine.turn = engine, crowded, self.turn
        engine.yield_at_once = crowded
        engine.background = True
        engine.set_limits(*rules.node_limits(crowded))
        engine.open({name: None for name in LOCAL})

    def _acquire(self, shape: Shape) -> Run:
        Flight.sweep()
        self.check()
        choice = Choice(find(shape.collective, "shm"), None, "all ranks share a node")
        key = choice, shape, self.node
        return Run(self, key, self.idle(key) or _core.NodePlan(self.node, shape))

    def run(self, shape: Shape, source: int, target: int, owners: Any, timeout: float | None) -> None:
        """A blocking call on memory at two addresses."""
        with self.in_turn():
            run = self._acquire(shape)
            try:
                run.start(source, target, 0, owners)
                self.wait(run, run.plan, timeout)
            except BaseException as e:
                self.fail(run, e)
            run.release()

    def start(
        self, shape: Shape, source: int, target: int, owners: Any, then: Callable[[], None] | None = None
    ) -> Flight:  # fmt: skip
        """A call that goes on by itself; ``then`` runs at its end, in whichever thread that is."""
        self.check_turn()
        run = self._acquire(shape)
        try:
            run.start(source, target, 0, owners)
            return Flight(self, run, self, then)
        except BaseException as e:
            self.fail(run, e)


def _forced() -> bytes:
    """The algorithms that rank 0's environment asks for, as JSON; what is wrong with it, by no name."""
    try:
        return json.dumps(Rules.from_environment().forced).encode()
    except ValueError as e:
        return json.dumps({"": f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}"}).encode()


def _rules(forced: dict[str, str]) -> Rules:
    """Rank 0's rules for all; ValueError where there are none."""
    if "" in forced:
        raise ValueError(forced[""])
    others = sorted(set(forced.values()) - {"shm"})
    if others:
        raise ValueError(f"COLLECTIVES_ALGORITHM: without MPI there is the algorithm 'shm' only, not {others[0]!r}")
    return Rules(forced=forced)
