"""What a call is once an algorithm is chosen for it: its shape, its plan, and a run of the plan."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Any, NamedTuple

from . import _core
from .diagnosis import Call, signature
from .flight import ShortCall
from .giving_up import RECENT
from .waiting import Waiting
from .watching import Wait

__all__ = ["Plans", "Run", "Shape"]

PLAN_BYTES = 64 << 20  # scratch that idle plans may hold


class Shape(NamedTuple):
    """What a plan is made for, besides the algorithm.

    ``collective`` is the one whose algorithms serve the call ("allgather" for an all-gather of unequal blocks too).
    ``elements`` of ``itemsize`` bytes are those of all blocks together, as this rank knows them; ``dtype`` is the
    kernels' code, or -1 for bytes that are only moved. ``op`` is a kernel's code, ``(library, MPI op, MPI datatype)``
    as integers behind the library, or None where nothing is reduced. ``in_place``: input and vector are the same
    memory. ``cuts`` are the boundaries of the blocks in elements where they are not as equal as can be, and
    ``input_cuts`` those of the input where they differ.
    """

    collective: str
    root: int
    elements: int
    itemsize: int
    dtype: int
    op: Any
    in_place: bool
    cuts: tuple[int, ...] | None = None
    input_cuts: tuple[int, ...] | None = None

    def call(self, algorithm: str) -> Call:
        """A call of this shape, in words; without its number."""
        name = self.collective
        if name == "reduce_scatter":
            name += "_block" if self.cuts is None else ""
        elif self.cuts is not None:
            name += "v"
        return signature(name, algorithm, self.elements, self.dtype, self.op, self.root)


class Run:
    """One run of a plan, which goes back to the cache when it is released."""

    __slots__ = ("begin", "buffers", "context", "history", "key", "number", "plan", "stands_for")

    def __init__(self, context: Plans, key: Any, plan: _core.Plan | _core.NodePlan):
        self.context = context
        self.key = key
        self.plan = plan
        self.buffers: Any = None
        self.number: int | None = None
        self.history = 0
        self.stands_for: Call | None = None  # the call that this run is an exchange for

    def call(self) -> Call:
        """Number, type signature, op and root."""
        if self.stands_for is not None:
            return self.stands_for
        choice, shape, _ = self.key
        return shape.call(choice.algorithm.name)._replace(number=self.number, history=self.history)

    def __str__(self) -> str:
        if self.stands_for is not None:
            return f"check of {self.stands_for.collective}" if self.stands_for.algorithm else self.stands_for.collective
        choice, shape, _ = self.key
        return f"{shape.collective} ({choice.algorithm.name}, {shape.elements * shape.itemsize} bytes)"

    def start(self, source: int, target: int, tag: int, buffers: Any) -> None:
        """Begin, on memory at two addresses; ``buffers`` own it and live as long as the run."""
        self.buffers = buffers
        if self.context.log is not None:
            self.begin = _core.ticks()
        self.plan.start(source, target, tag)
        self.number = self.context.begun
        self.history = self.context.numbers.history

    def release(self) -> None:
        """Give the plan back."""
        self.buffers = None
        self.context.keep(self.key, self.plan)


class Plans(Waiting):
    """The idle plans of a communicator, by what they were made for; mixed into what makes them."""

    def __init__(self) -> None:
        self.waits, self.tested, self.turn = [], {}, _core.Turn()
        self.recent = deque(maxlen=RECENT)
        self.numbers = _core.Numbers()
        self._running: Any = None, None
        self._lock = threading.RLock()  # any thread may give a plan back, and a handler of a signal within that
        self._idle: OrderedDict[Any, list[_core.Plan | _core.NodePlan]] = OrderedDict()
        self._idle_bytes = 0

    def idle(self, key: Any) -> _core.Plan | _core.NodePlan | None:
        """An idle plan, if there is one, which is then not idle any more."""
        with self._lock:
            plans = self._idle.get(key)
            if not plans:
                return None
            plan = plans.pop()
            self._idle_bytes -= plan.footprint
            return plan

    def keep(self, key: Any, plan: _core.Plan | _core.NodePlan) -> None:
        """Take a plan back; the least recently used go when they hold too much memory."""
        if plan.footprint > PLAN_BYTES:
            return
        with self._lock:
            self._idle.setdefault(key, []).append(plan)
            self._idle_bytes += plan.footprint
            if key in self._idle:  # unless a handler has dropped it
                self._idle.move_to_end(key)
            while self._idle_bytes > PLAN_BYTES or len(self._idle) > 256:
                _, plans = self._idle.popitem(last=False)
                self._idle_bytes -= sum(p.footprint for p in plans)

    def forget_plans(self, engine: _core.Node | None = None) -> None:
        """Let go of the idle plans, of one group of the node-local engine or all."""
        with self._lock:
            for key in [key for key in self._idle if engine is None or key[2] is engine]:
                self._idle_bytes -= sum(plan.footprint for plan in self._idle.pop(key))

    def run_of(self, cached: _core.CachedPlan, plan: Any = None, owners: Any = None) -> Run:
        """The call like an earlier one that is under way, as other calls are."""
        run = Run(self, (cached.choice, cached.shape, self.node), plan)
        run.begin, run.buffers = _core.ticks(), owners
        run.number, run.history = self.begun, self.numbers.history
        return run

    def go_on_with(
        self, cached: _core.CachedPlan, plan: _core.Plan, owners: Any, timeout: float | None,
        failure: BaseException | None,
    ) -> None:  # fmt: skip
        """Wait for a call like an earlier one, which is not complete at once; or say why it failed."""
        run = self.run_of(cached, plan, owners)
        try:
            if failure is not None:
                raise failure
            self.wait(run, plan, timeout)
        except BaseException as e:
            self.fail(run, e)

    def interrupted_in(self, cached: _core.CachedPlan, plan: _core.Plan, owners: Any, error: BaseException) -> None:
        """Give up a call like an earlier one, if it is still under way and nobody else has."""
        if self.broken is None and plan.busy:
            self.note(self.run_of(cached, plan, owners), error)

    def take_back(self, cached: _core.CachedPlan, plan: _core.Plan) -> None:
        """:meth:`keep` the plan of a call like an earlier one."""
        self.keep((cached.choice, cached.shape, self.node), plan)

    def listed(self) -> list[Wait]:
        """What threads wait for; a call like an earlier one enters itself nowhere, and is looked for here."""
        running = self.numbers.running
        if running is None or self.waits:
            return list(self.waits)
        if self._running[0] is not running:
            cached, number, plan = running
            run = self.run_of(cached, plan)
            run.number = number
            wait = Wait(run, self.timeout, [])
            wait.thread, wait.calls_back = self.turn.holder, False
            self._running = running, wait
        return [self._running[1]]

    def finish_short(self, owners: Any, timeout: float | None = None) -> None:
        """Wait for a call that the short way began; ``owners`` keep its memory."""
        call = self.short_call()._replace(buffers=owners)
        try:
            self.wait(call, call.plan, timeout)
        except BaseException as e:
            self.fail(call, e)
        finally:
            self.turn.give()

    def interrupted(self, owners: Any, error: BaseException) -> None:
        """Give up a call that the short way began, if it is still under way and nobody else has."""
        if self.broken is None and self.node is not None and self.node.pending:
            self.note(self.short_call()._replace(buffers=owners), error)

    def short_call(self) -> ShortCall:
        """The call of the short way that is under way."""
        assert self.node is not None
        return ShortCall(self.node, None, self.begun)
