"""The library's side of a group of ranks: what they know of each other, their plans, and how calls run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..arguments.shape import Shape
from ..core import _core
from ..diagnostics import peer_queries
from ..selection.policy import Rules
from ..system import shared_memory
from ..waiting.waiting import Waiting
from ..waiting.watching import Wait
from . import bootstrap
from .plans import Plan, Plans

__all__ = ["Context"]


class Context(Waiting):
    """Made by all ranks of the group together, over MPI or without it.

    ``gather`` collects a named tuple from all ranks on all ranks: MPI does so, a store, or anything else that the
    processes have in common.
    """

    mpi_queries: Any = None  # where some ranks are on other machines
    rules: Rules
    apart: str | None  # why the ranks cannot use the node-local engine together

    def __init__(self, rank: int, size: int):
        self.set_group(rank, size)
        self.waits, self.tested, self.left = [], {}, {}
        self.plans = Plans()
        _core.sweep()

    # Set-up

    def introduce(self, gather: bootstrap.Gather, settings: bytes, timeline: bool = False) -> bootstrap.Known:
        """Tell the others who this rank is, and hear who they are; ``settings`` are rank 0's for all."""
        offer, self._area = shared_memory.offer()
        mine = bootstrap.hello(self.rank, self.size, offer, settings, timeline)
        known = bootstrap.introduce(self.rank, mine, gather(mine))
        self.identity, self.neighbours = known.identity, known.neighbours
        self.yield_at_once = known.here > known.usable_cores
        return known

    def join(
        self, known: bootstrap.Known, gather: bootstrap.Gather, library: _core.MPILibrary | None = None,
        endpoint: _core.Endpoint | None = None,
    ) -> None:  # fmt: skip
        """Join the ranks of this node in a group of the node-local engine, if they share memory."""
        joined = shared_memory.join(self.rank, self.size, known.offers, self._area, gather, library, endpoint)
        self.group, self.node, self.apart = joined

    def register(self) -> None:
        """Answer ranks that ask what this one does."""
        peer_queries.register(self.identity, self)

    def adopt(self, rules: Rules) -> None:
        """Choose by these rules from now on; on all ranks together, while no call is under way."""
        self.rules = rules
        if self.node is not None:
            self.set_limits(self.node)
            if self.apart is None:
                self.open(rules.local_reach())

    def set_limits(self, engine: _core.Node) -> None:
        """The limits between the schemes of a group of the node-local engine: the same on all ranks."""
        engine.set_limits(*self.rules.node_limits(self.yield_at_once))

    # Plans

    def keep(self, plan: Plan) -> None:
        """Take an idle plan back."""
        self.plans.keep(plan)

    def plan_for(self, cached: _core.CachedPlan) -> Plan:
        """A plan for a call like an earlier one."""
        self.check()
        return self.plan(*cached.key)

    def plan(self, *key: Any) -> Plan:
        """A plan for a choice, a shape and a group of the node-local engine, from the idle ones or made now."""
        plan = self.plans.take(key)
        if plan is None:
            plan = self.make_plan(*key)
            plan.key = key
        return plan

    def make_plan(self, choice: Any, shape: Shape, engine: _core.Node | None) -> Plan:
        """A new plan."""
        raise NotImplementedError

    def tag(self, choice: Any, shape: Shape) -> int:
        """First of the tags of the next call."""
        raise NotImplementedError

    # Operations

    def operation(self, choice: Any, shape: Shape, engine: _core.Node | None = None) -> _core.Operation:
        """What runs a call; ``engine`` is the group of a persistent one."""
        _core.sweep()
        self.check()
        return _core.Operation(self, self.plan(choice, shape, engine or self.node))

    def run(self, operation: _core.Operation, source: int, target: int, buffers: Any, timeout: float | None) -> None:
        """Run a blocking operation on memory at two addresses, which ``buffers`` own."""
        try:
            operation.start(source, target, self._tag_of(operation), buffers)
            self.wait(operation, timeout)
        except BaseException as e:
            self.fail(operation, e)
        operation.release()

    def queue(
        self, operation: _core.Operation, source: int, target: int, buffers: Any, holder: Any,
        library: _core.MPILibrary | None = None, then: Callable[[], Any] | None = None,
    ) -> _core.Operation:  # fmt: skip
        """Begin an operation that goes on by itself (see :meth:`_core.Operation.bind`)."""
        try:
            operation.bind(source, target, self._tag_of(operation), buffers, holder, library, then).queue()
            self.look_for_quitters(operation)
        except BaseException as e:
            self.fail(operation, e)
        return operation

    def _tag_of(self, operation: _core.Operation) -> int:
        choice, shape, _ = operation.plan.key
        return self.tag(choice, shape)

    def finish(
        self, operation: _core.Operation, timeout: float | None = None, failure: BaseException | None = None
    ) -> None:  # fmt: skip
        """Wait for a blocking operation, which has begun, to its end; or say why it failed."""
        try:
            if failure is not None:
                raise failure
            self.wait(operation, timeout)
        except BaseException as e:
            self.fail(operation, e)

    def interrupted(self, operation: _core.Operation, error: BaseException) -> None:
        """Give up a blocking operation after an exception, if it is still under way and nobody else has."""
        plan: Any = operation.plan
        if self.broken is None and (plan.pending if isinstance(plan, _core.NodePlan) else plan.busy):
            self.note(operation, error)

    def free(self) -> None:
        """Complete what is under way, and begin no more."""
        for operation in _core.queued(self):
            operation.complete()
        self.plans.forget()
        self.close()

    def listed(self) -> list[Wait]:
        """What threads wait for; an operation of the fast path enters itself nowhere, and is looked for here."""
        running = self.running
        if running is None or self.waits:
            return list(self.waits)
        wait = Wait(running, self.timeout if running.timeout is None else running.timeout, [])
        wait.key, wait.calls_back = running.begin, False  # it is the same wait until the next call begins
        wait.thread = self.turn.holder or wait.thread
        return [wait]
