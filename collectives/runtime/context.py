"""The library's side of a group of ranks: what they know of each other, their plans, and how calls are executed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ..arguments.shape import Shape
from ..core import _core
from ..diagnostics import peer_queries
from ..selection.policy import LOCAL, Rules
from ..system import shared_memory
from ..waiting.waiting import Waiting
from ..waiting.watching import Wait
from . import bootstrap
from .nodes import Nodes
from .plans import Plan, Plans

__all__ = ["Context"]

_log = logging.getLogger("collectives")


class Context(Waiting):
    """The library's side of a group of ranks; making it is collective, over MPI or without it.

    The parameter ``gather`` of the methods is an all-gather of named tuples, by MPI, by a store, or by any other
    means of communication that the processes share.
    """

    mpi_queries: Any = None  # set if some ranks are on other machines
    gpu: Any = None  # what calls on arrays of GPUs keep, with `leave` and `free` for the end
    rules: Rules
    apart: str | None  # why the ranks cannot use the node-local engine together
    crowded: bool  # whether the ranks of this node outnumber its cores; the same on all of them
    nodes: Nodes

    def __init__(self, rank: int, size: int):
        self.set_group(rank, size)
        self.waits, self.tested, self.left = [], {}, {}
        self.plans = Plans()
        _core.sweep()

    # Set-up

    def introduce(
        self, gather: bootstrap.Gather, settings: bytes, timeline: bool = False, background: bool = True,
        unannounced: int = 0,
    ) -> bootstrap.Known:  # fmt: skip
        """Tell the others who this rank is, and hear who they are; ``settings`` are rank 0's for all.

        ``background``: this rank's MPI lets a thread beside the program's progress calls. ``unannounced`` is as in
        :class:`collectives.runtime.bootstrap.Hello`.
        """
        offer, self._area = shared_memory.offer()
        mine = bootstrap.hello(self.rank, self.size, offer, settings, timeline, background, unannounced)
        known = bootstrap.introduce(self.rank, mine, gather(mine))
        self.identity, self.neighbours = known.identity, known.neighbours
        self.yield_at_once = known.here > known.usable_cores
        for text in known.advice:
            _log.warning("%s", text)
        return known

    def join(
        self, known: bootstrap.Known, gather: bootstrap.Gather, library: _core.MPILibrary | None = None,
        endpoint: _core.Endpoint | None = None,
    ) -> None:  # fmt: skip
        """Join the ranks of this node in a group of the node-local engine, if they share memory."""
        self.group, self.node, self.apart, self.crowded, numbers = shared_memory.join(
            self.rank, self.size, known.offers, self._area, gather, library, endpoint, self.yield_at_once
        )
        self.nodes = Nodes.of(numbers)

    @property
    def engine(self) -> str:
        """By what the ranks exchange data under the present rules, as text."""
        reach = self.rules.local_reach()
        if not reach:
            return "MPI"
        if self.apart is None:
            every = all(reach.get(collective, -1) is None for collective in LOCAL)
            return "shared memory" if every else "shared memory, for some calls MPI"
        return "MPI" if self.nodes.obstacle else "shared memory on each node, MPI between them"

    def register(self) -> None:
        """Begin to answer other ranks' questions about this rank's calls on this communicator."""
        peer_queries.register(self.identity, self)

    def adopt(self, rules: Rules) -> None:
        """Choose algorithms by ``rules`` from now on. All ranks call this together, while no call is under way."""
        self.rules = rules
        if self.node is not None:
            self.set_limits(self.node)
            if self.apart is None:
                self.open(rules.local_reach())

    def set_limits(self, engine: _core.Node) -> None:
        """Set the limits of a group of the node-local engine from the rules, which are the same on all ranks."""
        engine.set_limits(*self.rules.node_limits(self.crowded))

    # Plans

    def keep(self, plan: Plan) -> None:
        """Keep ``plan``, which is idle now, for another call."""
        self.plans.keep(plan)

    def plan_for(self, cached: _core.CachedPlan) -> Plan:
        """A plan with the key of ``cached``, for a call equal to an earlier one but for its addresses."""
        self.check()
        return self.plan(*cached.key)

    def plan(self, *key: Any) -> Plan:
        """A plan for ``key``: choice, shape and group of the node-local engine; an idle plan, or a new one."""
        plan = self.plans.take(key)
        if plan is None:
            plan = self.make_plan(*key)
            plan.key = key
        return plan

    def make_plan(self, choice: Any, shape: Shape, engine: _core.Node | None) -> Plan:
        """Make a plan that executes ``shape`` by the algorithm of ``choice``."""
        raise NotImplementedError

    def tag(self, choice: Any, shape: Shape) -> int:
        """First of the tags of the next call; counts the call."""
        raise NotImplementedError

    # Operations

    def operation(self, choice: Any, shape: Shape, engine: _core.Node | None = None) -> _core.Operation:
        """An operation that executes a call; ``engine`` is the group of a persistent call, else the default one."""
        _core.sweep()
        self.check()
        return _core.Operation(self, self.plan(choice, shape, engine or self.node))

    def run(self, operation: _core.Operation, source: int, target: int, buffers: Any, timeout: float | None) -> None:
        """Run a blocking operation on the memory at ``source`` and ``target``, which ``buffers`` keep alive."""
        try:
            try:
                operation.start(source, target, self._tag_of(operation), buffers)
                self.wait(operation, timeout)
            except BaseException as e:
                self.fail(operation, e)
        except BaseException as e:
            self.interrupted(operation, e)
            raise
        operation.release()

    def queue(
        self, operation: _core.Operation, source: int, target: int, buffers: Any, holder: Any,
        library: _core.MPILibrary | None = None, then: Callable[[], Any] | None = None,
    ) -> _core.Operation:  # fmt: skip
        """Begin a non-blocking operation, which proceeds in the background (see :meth:`_core.Operation.bind`)."""
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
        """Wait until a blocking operation, which has begun, ends; or fail it with ``failure``."""
        try:
            if failure is not None:
                raise failure
            self.wait(operation, timeout)
        except BaseException as e:
            self.fail(operation, e)

    def interrupted(self, operation: _core.Operation, error: BaseException) -> None:
        """Give up a blocking operation after an exception, unless it has ended well or :meth:`fail` has recorded it.

        A signal's handler may raise at the begin of ``fail``, so that an operation which has ended with an error is not
        recorded.
        """
        plan: Any = operation.plan
        if self.broken is None and plan.busy:
            self.note(operation, error)

    def free(self) -> None:
        """Complete the queued operations, and let no more begin."""
        for operation in _core.queued(self):
            operation.complete()
        self.plans.forget()
        self.close()

    def listed(self) -> list[Wait]:
        """The waits of all threads, including one for an operation of the fast path, which does not list itself."""
        running = self.running
        if running is None or self.waits:
            return list(self.waits)
        wait = Wait(running, self.timeout if running.timeout is None else running.timeout, [])
        wait.key, wait.calls_back = running.begin, False  # one key until the next call begins
        wait.thread = self.turn.holder or wait.thread
        return [wait]
