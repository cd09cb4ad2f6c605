"""The library's side of a group of processes on one node where there is no MPI: the node-local engine alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from . import _core, inquiry, lifetime, machine, node
from .errors import CollectiveError
from .flight import Flight
from .plans import Plans, Run, Shape
from .registry import find
from .select import LOCAL, Choice, Rules
from .telling import dump_on_signal

__all__ = ["LocalContext"]

_serial = itertools.count()


class _Hello(NamedTuple):
    """What a rank tells all others when they meet."""

    identity: str
    dead: list[tuple[str, int]]
    affinity: frozenset[int]
    address: inquiry.Address | None
    offer: node.Offer | None
    forced: dict[str, str]  # rank 0's algorithms by collective, for all


class _Apart(NamedTuple):
    why: str | None


class LocalContext(Plans):
    """What :class:`collectives.context.Context` is with MPI; made by all ranks of the group together.

    ``exchange`` gathers a named tuple from all ranks on all ranks: a store does, or anything else that the processes
    have in common. CollectiveError, on all ranks, where they do not share memory.
    """

    letters = None  # all ranks are neighbours

    def __init__(self, rank: int, size: int, exchange: Callable[[Any], list[Any]], timeout: float | None = None):
        super().__init__()
        self.rank, self.size, self.timeout = rank, size, timeout
        self.broken: str | None = None
        self.heard, self.left = {}, {}
        dump_on_signal()
        Flight.sweep()
        offer, area = node.offer()
        identity = f"{machine.node_name()}/{os.getpid()}/local/{next(_serial)}"
        address = inquiry.address() if size > 1 else None
        mine = _Hello(identity, lifetime.dead(), machine.affinity(), address, offer, _forced() if rank == 0 else {})
        hellos = exchange(mine)
        lifetime.free_agreed(hello.dead for hello in hellos)
        self.identity, rules = hellos[0].identity, _rules(hellos[0].forced)
        self.group, engine = node.join(rank, [hello.offer for hello in hellos], area, exchange)
        apart = [
            told.why for told in exchange(_Apart(node.why_apart(size, self.group, engine))) if told.why is not None
        ]
        if apart or engine is None:
            raise CollectiveError(
                f"without MPI all processes must be on one node: {apart[0]}; start the program with mpiexec or srun"
            )
        self.neighbours = inquiry.neighbours(rank, [hello.address for hello in hellos])
        inquiry.register(self.identity, self)
        self._set_up(engine, rules, size > machine.usable_cores(hello.affinity for hello in hellos))

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


def _forced() -> dict[str, str]:
    """The algorithms that rank 0's environment asks for; what is wrong with it, by no name."""
    try:
        return Rules.from_environment().forced
    except ValueError as e:
        return {"": f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}"}


def _rules(forced: dict[str, str]) -> Rules:
    """Rank 0's rules for all; ValueError where there are none."""
    if "" in forced:
        raise ValueError(forced[""])
    others = sorted(set(forced.values()) - {"shm"})
    if others:
        raise ValueError(f"COLLECTIVES_ALGORITHM: without MPI there is the algorithm 'shm' only, not {others[0]!r}")
    return Rules(forced=forced)
