"""What a communicator holds for the library: a duplicate of its own, the rules all ranks agreed on, and plans."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from mpi4py import MPI

from . import _core, heap, lifetime, machine, mpilib, node
from .errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure
from .leases import Lease, Leases
from .registry import ScheduleAlgorithm
from .request import Flight
from .schedule import Schedule, build
from .select import LOCAL, Choice, Rules, choose, segments_for

__all__ = ["Context", "Run", "Shape", "ShortCall", "duplicate", "program_of", "schedule_of"]

DEPTH = 4  # segments of one call in flight, and so tags of one call
LOCAL_LENGTHS = ("gather", "scatter", "alltoall")  # of unequal blocks ranks know but some lengths
PLAN_BYTES = 64 << 20  # scratch that idle plans may hold
WAIT_SLICE = 20_000_000  # ns between looks at signals and deadlines
LAST_CALL = 5_000_000_000  # ns that the end of the program waits for requests nobody waited for

#: Error classes by which MPI says that a rank died, or that another rank has noticed it (0: this MPI has none).
DEATHS = {getattr(MPI, name, 0) for name in ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")} - {0}

_library = mpilib.library()
_serial = itertools.count()
_pid = os.getpid()


@atexit.register
def _stop() -> None:
    if os.getpid() == _pid:
        _core.stop_progress(LAST_CALL)


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


@functools.lru_cache(maxsize=256)
def schedule_of(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> Schedule:
    """The schedule of one rank, built once."""
    return build(algorithm, rank, size, root)


@functools.lru_cache(maxsize=256)
def program_of(algorithm: ScheduleAlgorithm, rank: int, size: int, in_place: bool, root: int = 0) -> _core.Program:
    """The schedule of one rank with its dependencies, for calls in place or out of place."""
    s = schedule_of(algorithm, rank, size, root)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block, s.blockwise)


def duplicate(comm: MPI.Intracomm, info: MPI.Info | None = None) -> MPI.Intracomm:
    """MPI's duplicate of a communicator; CollectiveError where MPI has no more of them."""
    try:
        return comm.Dup(info)
    except MPI.Exception as e:
        if e.Get_error_class() == MPI.ERR_COMM:
            raise
        why = str(e).splitlines()[0]
        raise CollectiveError(
            f"MPI makes no more communicators ({why}); free those that are done with: each of ours takes two of MPI's"
        ) from e


class Run:
    """One run of a plan, which goes back to the cache when it is released."""

    __slots__ = ("buffers", "context", "key", "plan")

    def __init__(self, context: Context, key: Any, plan: _core.Plan | _core.NodePlan):
        self.context = context
        self.key = key
        self.plan = plan
        self.buffers: Any = None

    def __str__(self) -> str:
        choice, shape, _ = self.key
        return f"{shape.collective} ({choice.algorithm.name}, {shape.elements * shape.itemsize} bytes)"

    def start(self, source: int, target: int, tag: int, buffers: Any) -> None:
        """Begin, on memory at two addresses; ``buffers`` own it and live as long as the run."""
        self.buffers = buffers
        self.plan.start(source, target, tag)

    def release(self) -> None:
        """Give the plan back."""
        self.buffers = None
        self.context.keep(self.key, self.plan)


class ShortCall(NamedTuple):
    """A call of the node-local engine that took the short way; it is waited for as a run is."""

    plan: _core.Node
    buffers: Any

    def __str__(self) -> str:
        collective, nbytes = self.plan.call
        return f"{collective} (shm, {nbytes} bytes)"


class Context:
    """The library's side of one communicator; made on all its ranks together."""

    def __init__(self, visible: MPI.Intracomm):
        self.library = _library
        self.internal = duplicate(MPI.Intracomm(visible))
        self.internal.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self.internal.rank, self.internal.size
        self.broken: str | None = None
        Flight.sweep()
        offer, area = node.offer()
        hellos = self.internal.allgather({**self._hello(), "offer": offer})
        lifetime.free_agreed(h["dead"] for h in hellos)
        self.identity, settings = hellos[0]["identity"], hellos[0]["settings"]
        if isinstance(settings, Exception):
            self.internal.Free()
            raise settings
        self.rules, self.timeout = settings
        here = [h for h in hellos if h["node"] == hellos[self.rank]["node"]]
        self.yield_at_once = len(here) > machine.usable_cores(h["affinity"] for h in here)
        self.locks_ops = mpilib.locks_ops()
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.endpoint = self.library.endpoint(self.internal.handle, self.internal)
        self.group, self.node = self._join([h["offer"] for h in hellos], area)
        self.apart = node.why_apart(self.size, self.group, self.node)
        self._leases = Leases()
        if self.node is not None:
            self._set_up(self.node)
            if self.apart is None:
                self.node.open(name for name in LOCAL if name not in self.rules.forced)
        calls = self.endpoint.tag_limit // DEPTH
        self._persistent_calls = min(calls // 2, 1 << 16)
        self._calls = min(calls - self._persistent_calls, 1 << 16)
        self._call, self._persistent_call = itertools.count(), itertools.count()
        self._choices: dict[Any, Choice] = {}
        self._lock = threading.Lock()  # of the idle plans, which any thread may give back
        self._idle: OrderedDict[Any, list[_core.Plan | _core.NodePlan]] = OrderedDict()
        self._idle_bytes = 0

    def _hello(self) -> dict[str, Any]:
        """What ranks tell each other when a communicator is made; rank 0's identity and rules hold for all."""
        return {
            "identity": f"{machine.node_name()}/{os.getpid()}/{next(_serial)}",
            "settings": _settings() if self.rank == 0 else None,
            "dead": lifetime.dead(),
            "node": machine.node_name(),
            "affinity": machine.affinity(),
        }

    def _join(self, offers: list[node.Offer | None], area: _core.HeapBlock | None) -> tuple[list[int], Any]:
        return node.join(self.rank, offers, area, self.internal.allgather, self.library, self.endpoint)

    def _set_up(self, engine: _core.Node) -> None:
        """How ranks wait there, and the limits between its schemes: the same on all of them."""
        engine.yield_at_once = self.yield_at_once
        engine.set_limits(*self.rules.node_limits[self.yield_at_once])

    def another_node(self) -> Lease | None:
        """A group of the node-local engine with an order of calls of its own, agreed by all ranks together.

        None, on all ranks, where there is no memory for it.
        """
        offer, area = node.offer()
        offers, idle = zip(*self.internal.allgather((offer, self._leases.idle())), strict=True)
        lease = self._leases.again(list(idle), self._forget_plans)
        if lease is not None:
            return lease
        group, engine = self._join(list(offers), area)
        if engine is None or node.why_apart(self.size, group, engine) is not None:
            return None
        self._set_up(engine)
        return self._leases.new(engine)

    def _forget_plans(self, engine: _core.Node) -> None:
        """Let go of the idle plans in a group."""
        with self._lock:
            for key in [key for key in self._idle if key[2] is engine]:
                self._idle_bytes -= sum(plan.footprint for plan in self._idle.pop(key))

    def tag(self, choice: Choice) -> int:
        """First of the tags of the next call; calls come in the same order on all ranks.

        The node-local engine has numbers of its own: a call may go the short way there on some ranks only.
        """
        return 0 if choice.algorithm.name == "shm" else next(self._call) % self._calls * DEPTH

    def persistent_tag(self) -> int:
        """Tags of a persistent call, its own while there are no more than 65536 of them."""
        return (self._calls + next(self._persistent_call) % self._persistent_calls) * DEPTH

    def choose(
        self, collective: str, nbytes: int, forced: str | None, commutes: bool, linear: bool, apart: str | None = None
    ) -> Choice:  # fmt: skip
        """The algorithm of a call (see :func:`collectives.select.choose`), remembered.

        ``apart``: why this call cannot go to the node-local engine.
        """
        apart = self.apart or apart
        key = collective, nbytes, forced, commutes, linear, apart
        choice = self._choices.get(key)
        if choice is None:
            if len(self._choices) > 10_000:
                self._choices.clear()
            choice = self._choices[key] = choose(
                self.rules, collective, nbytes, forced=forced, commutes=commutes, linear=linear, apart=apart
            )
        return choice

    def acquire(self, choice: Choice, shape: Shape, engine: _core.Node | None = None) -> Run:
        """A plan for a call, from the cache or made now; ``engine`` is the group of a persistent call."""
        Flight.sweep()
        self.check()
        engine = engine or self.node
        key = choice, shape, engine
        with self._lock:
            idle = self._idle.get(key)
            if idle:
                plan = idle.pop()
                self._idle_bytes -= plan.footprint
                return Run(self, key, plan)
        return Run(self, key, self._plan(choice, shape, engine))

    def _plan(self, choice: Choice, shape: Shape, engine: _core.Node | None) -> _core.Plan | _core.NodePlan:
        algorithm = choice.algorithm
        if algorithm.name == "shm" and engine is not None:
            return _core.NodePlan(engine, shape)
        assert isinstance(algorithm, ScheduleAlgorithm)
        program = program_of(algorithm, self.rank, self.size, shape.in_place, shape.root)
        segments = 1
        if shape.cuts is None or shape.collective not in LOCAL_LENGTHS:
            segments = segments_for(choice, self.size, shape.elements * shape.itemsize, DEPTH, shape.root)
        return _core.Plan(
            program,
            self.endpoint,
            shape.elements,
            shape.itemsize,
            shape.dtype,
            shape.op,
            segments,
            min(segments, DEPTH),
            shape.cuts,
            shape.input_cuts,
        )

    def keep(self, key: Any, plan: _core.Plan | _core.NodePlan) -> None:
        """Take a plan back; the least recently used go when they hold too much memory."""
        if plan.footprint > PLAN_BYTES:
            return
        with self._lock:
            self._idle.setdefault(key, []).append(plan)
            self._idle.move_to_end(key)
            self._idle_bytes += plan.footprint
            while self._idle_bytes > PLAN_BYTES or len(self._idle) > 256:
                _, plans = self._idle.popitem(last=False)
                self._idle_bytes -= sum(p.footprint for p in plans)

    def wait(self, run: Run | ShortCall, progressing: Any, timeout: float | None = None) -> None:
        """Progress a run to its end, or to the timeout (default: ``COLLECTIVES_TIMEOUT``)."""
        timeout = self.timeout if timeout is None else timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        limit = WAIT_SLICE if timeout is None else max(0, min(WAIT_SLICE, int(timeout * 1e9)))
        while not progressing.wait(self.yield_at_once, limit):
            if deadline is not None and time.monotonic() >= deadline:
                behind = run.plan.waiting() or {rank for f in Flight.of(self) for rank in f.run.plan.waiting()}
                waiting = ", ".join(map(str, sorted(behind)))
                raise CollectiveTimeout(
                    f"{run} on rank {self.rank} of {self.size}: not complete after {timeout} s; "
                    f"waiting for rank {waiting}"
                )

    def obstacle_to_threads(self, user_defined: bool) -> str | None:
        """Why the progress thread cannot serve a non-blocking call, or None."""
        if not self.threaded:
            return "non-blocking schedules need MPI.THREAD_MULTIPLE"
        if user_defined and self.locks_ops:
            return "this MPI holds its lock while it applies a user-defined op, so no thread beside the program's may"
        return None

    def by_mpi(
        self, name: str, blocking: Callable[..., None], starting: Callable[..., MPI.Request], arguments: Any,
        timeout: float | None,
    ) -> None:  # fmt: skip
        """Run the MPI library's own collective; with a timeout, its non-blocking one."""
        timeout = self.timeout if timeout is None else timeout
        if timeout is None:
            blocking(*arguments)
            return
        request = starting(*arguments)
        deadline = time.monotonic() + timeout
        try:
            while not request.Test():
                if time.monotonic() >= deadline:
                    where = f"{name} (mpi) on rank {self.rank} of {self.size}"
                    raise CollectiveTimeout(
                        f"{where}: not complete after {timeout} s; MPI does not say whom it waits for"
                    )
        except BaseException as e:
            self.note((request, arguments), e)
            raise

    def note(self, run: Any, error: BaseException) -> None:
        """A run ended early: what it left under way stays in memory, and no more is begun on this communicator.

        The other ranks cannot know. Whatever ended the run, they and this rank would no longer agree on the next one.
        """
        lifetime.keep(run)
        if self.broken is None:
            self.broken = f"{type(error).__name__}: {error}"
            if self.node is not None:
                self.node.open(())
            _core.broken(f"rank {self.rank} of {self.size}: {self.broken}")

    def fail(self, run: Run | ShortCall, error: BaseException) -> NoReturn:
        """:meth:`note` it, and raise the error, as a CollectiveError where MPI or the other ranks are to blame."""
        self.note(run, error)
        where = f"{run} on rank {self.rank} of {self.size}"
        if isinstance(error, _core.MismatchError):
            raise CollectiveMismatch(f"{where}: {error}") from None
        if isinstance(error, RuntimeError) and not isinstance(error, CollectiveError):
            code = self.endpoint.mpi_error
            detail = f" ({MPI.Get_error_string(code)})" if code else ""
            if code and MPI.Get_error_class(code) in DEATHS:
                raise PeerFailure(f"{where}: a rank of the communicator died{detail}") from error
            raise CollectiveError(f"{where}: {error}{detail}") from error
        raise error

    def abandon(self) -> None:
        """Give up what is under way, on all ranks that live, because of one that died; what waits here ends in errors.

        Nothing is left that MPI_Finalize could wait for.
        """
        self.internal.Revoke()
        for flight in Flight.of(self):
            with contextlib.suppress(CollectiveError):
                flight.wait()
        if self.broken is not None:
            _core.mended()
        self.broken = "it was revoked by shrink"
        if self.node is not None:
            self.node.open(())
        heap.forget_the_dead()

    def check(self) -> None:
        """Refuse work on a communicator that failed, in a forked child, and after MPI's end."""
        if self.broken is not None:
            raise CollectiveError(f"this communicator is broken since an earlier call failed ({self.broken})")
        if _core.ended():
            if os.getpid() != _pid:
                raise CollectiveError("this process was forked from an MPI process; it cannot take part in collectives")
            raise CollectiveError("MPI has been finalized; there are no more collectives")

    def free(self) -> None:
        """Complete what is under way and free the duplicate; collective."""
        for flight in Flight.of(self):
            flight.wait()
        self._idle.clear()
        if self.node is not None:
            self.node.open(())
            self.internal.Barrier()  # the others may still look at this rank's flags
        self.internal.Free()


def _settings() -> tuple[Rules, float | None] | Exception:
    """Rank 0's rules and default timeout, or what is wrong with them: all ranks are to raise it."""
    try:
        text = os.environ.get("COLLECTIVES_TIMEOUT")
        timeout = float(text) if text else None
        if timeout is not None and not timeout > 0:
            raise ValueError("not a positive number of seconds")
    except ValueError as e:
        return ValueError(f"COLLECTIVES_TIMEOUT={text!r}: {e}")
    try:
        return Rules.from_environment(), timeout
    except ValueError as e:
        return ValueError(f"COLLECTIVES_ALGORITHM={os.environ['COLLECTIVES_ALGORITHM']!r}: {e}")
