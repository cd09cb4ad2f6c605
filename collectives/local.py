"""The library's side of a group of processes on one node where there is no MPI: the node-local engine alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from . import _core, inquiry, lifetime, machine, node
from .errors import CollectiveError
from .flight import Flight
from .plans import Plans, Run, Shape
from .registry import find
from .select import LOCAL, Choice, Rules
from .telling import dump_on_signal

__all__ = ["LocalContext"]

_serial = itertools.count()


class LocalContext(Plans):
    """What :class:`collectives.context.Context` is with MPI; made by all ranks of the group together.

    ``exchange`` gathers an object from all ranks on all ranks: a store does, or anything else that the processes have
    in common. CollectiveError, on all ranks, where they do not share memory.
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
        hellos = exchange({
            "identity": f"{machine.node_name()}/{os.getpid()}/local/{next(_serial)}",
            "dead": lifetime.dead(),
            "affinity": machine.affinity(),
            "address": inquiry.address() if size > 1 else None,
            "offer": offer,
            "rules": _rules() if rank == 0 else None,
        })  # fmt: skip
        lifetime.free_agreed(h["dead"] for h in hellos)
        self.identity, rules = hellos[0]["identity"], hellos[0]["rules"]
        if isinstance(rules, Exception):
            raise rules
        group, engine = node.join(rank, [h["offer"] for h in hellos], area, exchange)
        apart = [why for why in exchange(node.why_apart(size, group, engine)) if why is not None]
        if apart or engine is None:
            raise CollectiveError(
                f"without MPI all processes must be on one node: {apart[0]}; start the program with mpiexec or srun"
            )
        mine = hellos[rank]["address"]
        known = [(peer, h["address"]) for peer, h in enumerate(hellos) if peer != rank and h["address"] is not None]
        self.neighbours = {peer: a for peer, a in known if mine is not None and a.home == mine.home}
        inquiry.register(self.identity, self)
        self._set_up(engine, rules, size > machine.usable_cores(h["affinity"] for h in hellos))

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
        self.take_turn()
        try:
            run = self._acquire(shape)
            try:
                run.start(source, target, 0, owners)
                self.wait(run, run.plan, timeout)
            except BaseException as e:
                self.fail(run, e)
            run.release()
        finally:
            self.turn.give()

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


def _rules() -> Rules | Exception:
    """Rank 0's rules for all, or what is wrong with them."""
    try:
        rules = Rules.from_environment()
    except ValueError as e:
        return ValueError(f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}")
    others = sorted({name for name in rules.forced.values() if name != "shm"})
    if others:
        return ValueError(f"COLLECTIVES_ALGORITHM: without MPI there is the algorithm 'shm' only, not {others[0]!r}")
    return rules
