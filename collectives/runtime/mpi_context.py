"""The library's side of a communicator on MPI: a duplicate of it, the rules that all ranks agreed on, and plans."""

from __future__ import annotations

import contextlib
import functools
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mpi4py import MPI

from ..arguments.calls import Draft
from ..arguments.datatypes import DTYPE_CODES
from ..arguments.shape import LOCAL_LENGTHS, Shape, describing, kind_of_call
from ..arguments.signature import Call
from ..core import _core
from ..diagnostics import deaths, ports
from ..diagnostics.mpi_queries import MPIQueries
from ..errors import CollectiveError, PeerFailure
from ..schedules.build import build
from ..schedules.registry import ScheduleAlgorithm
from ..schedules.schedule import Schedule
from ..selection import hierarchy, table
from ..selection.layout import Layout
from ..selection.policy import Choice, Demand, Rules, segments_for
from ..system import heap, mpi_library, shared_memory
from ..trace import recording
from ..waiting.mpi_calls import MPIRun, MPIWaiting
from . import bootstrap, links, reference, settings
from .context import Context
from .hierarchy import DEPTH
from .hierarchy_plans import hierarchy_plan
from .meeting import Making, meeting
from .node_groups import NodeGroup, NodeGroups
from .nodes import Nodes
from .plans import Plan

__all__ = ["MPIContext", "duplicate"]

MEETINGS = 16  # number of tags for the messages of Making.meet_some
HEARD = 0.1  # s of delay before MPI_Comm_revoke: Open MPI 5 may abort a rank that tests a failed send
LEAST = DTYPE_CODES["int64"], _core.OPS.index("min")  # type and op of MPIContext.least

_library = mpi_library.library()


@functools.lru_cache(maxsize=256)
def schedule_of(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> Schedule:
    """The schedule of ``rank`` among ``size`` ranks; the latest 256 are cached."""
    return build(algorithm, rank, size, root)


@functools.lru_cache(maxsize=256)
def program_of(algorithm: ScheduleAlgorithm, rank: int, size: int, in_place: bool, root: int = 0) -> _core.Program:
    """The schedule of ``rank`` with its dependencies, for calls in place or out of place; 256 are cached.

    The schedule itself is not kept: a program has all of it.
    """
    s = build(algorithm, rank, size, root)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block, s.blockwise)


def duplicate(comm: MPI.Intracomm, info: MPI.Info | None = None) -> MPI.Intracomm:
    """MPI's duplicate of ``comm``; CollectiveError if MPI cannot make any more communicators."""
    return _made(comm, comm.Dup, info)


def like(comm: MPI.Intracomm) -> MPI.Intracomm:
    """MPI's communicator of the ranks of ``comm``, without its attributes: their copy functions are the program's.

    CollectiveError if MPI cannot make any more communicators.
    """
    plain, group = MPI.Intracomm(comm), comm.Get_group()
    try:
        return _made(plain, plain.Create, group)
    finally:
        group.Free()


def _made(comm: MPI.Intracomm, method: Callable[..., Any], *args: Any) -> MPI.Intracomm:
    """The communicator that ``method`` of ``comm`` makes; CollectiveError if MPI cannot make any more."""
    try:
        with deaths.named(comm, "Dup"):
            made: MPI.Intracomm = method(*args)
            return made
    except MPI.Exception as e:
        if e.Get_error_class() in (MPI.ERR_COMM, MPI.ERR_TRUNCATE):
            raise
        why = str(e).splitlines()[0]
        raise CollectiveError(
            f"MPI makes no more communicators ({why}); call Free of those that are done with: each takes two of MPI's, "
            "and one of them stays when it is only collected"
        ) from e


class MPIContext(MPIWaiting, Context):
    """The library's side of a communicator: a duplicate of it, the rules that all ranks agreed on, and tags."""

    def __init__(self, visible: MPI.Intracomm, making: Making):
        self.library = _library
        try:
            self.internal = like(visible)
        except CollectiveError as e:
            making.undone = not isinstance(e, PeerFailure)
            raise
        self.internal.Set_errhandler(MPI.ERRORS_RETURN)
        super().__init__(self.internal.rank, self.internal.size)
        gather = functools.partial(making.gather, self.internal)
        background = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        told = self._settings(), recording.is_recording(), background, self.library.unannounced()
        known = self.introduce(gather, *told)
        agreed: settings.Agreed | Exception = pickle.loads(known.settings)
        if isinstance(agreed, Exception):
            self.internal.Free()
            making.undone = True
            raise agreed
        self.checked, self.timeout, self.stall = agreed.checked, agreed.timeout, agreed.stall
        self.locks_ops = mpi_library.locks_ops()
        self.background = known.background
        self.endpoint = self.library.endpoint(self.internal.handle, self.internal)
        if known.hosts is not None and known.unannounced:
            self.endpoint.message_limit = known.unannounced
        self._divide_tags()
        self._meet(known, gather)
        self.join(known, gather, self.library, self.endpoint)
        self.life = _core.Life(self.library, visible.handle)
        self._node_groups = NodeGroups()
        self.layout, self._hosts = Layout.of(known.ranks_on), known.hosts
        self._link = known.link
        if self._hosts is not None and self._link is None:
            self._link = links.measured(making, self.internal, self._hosts)
        rules = Rules(forced=agreed.forced)
        if agreed.table is not None:
            rules.tuned = table.pick(agreed.table, self.layout)
        self.adopt(rules)
        recording.join(self, *agreed.timeline, known.timeline)

    def _settings(self) -> bytes:
        return pickle.dumps(settings.agreed()) if self.rank == 0 else b""

    def _meet(self, known: bootstrap.Known, gather: bootstrap.Gather) -> None:
        """Prepare questions to the other ranks, and the answers to theirs."""
        opened = gather(ports.port()) if known.separated and mpi_library.fears_the_dead() else []
        away = {rank: port for rank, port in enumerate(opened) if rank not in self.neighbours and port is not None}
        if len(self.neighbours) + 1 < self.size:
            self.mpi_queries = MPIQueries(self.internal, self.endpoint.tag_limit, self, away)
        self.register()

    def adopt(self, rules: Rules) -> None:
        """Choose algorithms by ``rules`` from now on. All ranks call this together, while no call is under way."""
        rules.hosts, rules.link, rules.lanes = self._hosts, self._link, self.nodes.width
        super().adopt(rules)
        self.cache(not self.checked)
        if self.checked:  # ranks compare each call before they make it, on the slow path
            self.close()

    def groups(self) -> list[_core.Node]:
        """The communicator's groups of the node-local engine, including those of persistent calls."""
        return [*super().groups(), *self._node_groups.engines()]

    def another_node(self, call: Call) -> NodeGroup | None:
        """A group of the node-local engine for one persistent call; all ranks call this together.

        None, on all ranks, if there is no memory for a group. ``call`` is what this rank tells ranks that ask.
        """
        with self.in_turn():
            idle = self._node_groups.idle()
            node_group = self._node_groups.again(self.least(idle, call)) if idle.size else None
            if node_group is not None:
                return node_group
            with meeting(call.collective, self.internal, self, call=call) as making:
                gather = functools.partial(making.gather, self.internal)
                offer, area = shared_memory.offer()
                theirs = dict(enumerate(gather(offer)))
                offers = {r: one for r, one in theirs.items() if shared_memory.on_one_machine(offer, one)}
                joined = shared_memory.join(
                    self.rank, self.size, offers, area, gather, self.library, self.endpoint, self.crowded
                )
        if joined.engine is None or None in theirs.values() or Nodes.of(joined.nodes) != self.nodes:
            return None
        self.set_limits(joined.engine)
        return self._node_groups.new(joined.engine)

    def least(self, numbers: np.ndarray, call: Call) -> np.ndarray:
        """The elementwise minimum of all ranks' ``numbers``, as a part of ``call``."""
        found = np.empty_like(numbers)
        shape = Shape("allreduce", 0, numbers.size, numbers.itemsize, *LEAST, False)
        forced = "shm" if self.apart is None else None
        choice = self.choose(Demand("allreduce", numbers.nbytes, forced, mpi="never", ruled=False))
        operation = self.operation(choice, shape)
        tag = self.tag(choice, shape)
        try:
            operation.start(_core.address(numbers), _core.address(found), tag, (numbers, found))
            operation.stands_for = call._replace(number=self.begun)
            self.wait(operation)
        except BaseException as e:
            self.fail(operation, e)
        operation.release()
        return found

    def tag(self, choice: Choice, shape: Shape) -> int:
        """First of the tags of the next call, which is counted; calls come in the same order on all ranks.

        The result is 0 for the node-local engine, which numbers its calls itself, also those of the fast path.
        """
        name = choice.algorithm.name
        return 0 if name == "shm" else self.count(kind_of_call(name, shape), describing(shape, name))

    def begin_walk(
        self, choice: Choice, draft: Draft, comm: Any, space: reference.Space = reference.HOST
    ) -> tuple[Any, reference.Walk]:
        """A call that the Python executor runs, with the C executor's segments one after the other; it is counted.

        Messages go by ``comm``, from and to memory in ``space``. For :meth:`end_walk`, and within :meth:`walking`.
        """
        shape = draft.shape
        plan: Any = self.operation(choice, shape).plan
        assert isinstance(choice.algorithm, ScheduleAlgorithm)
        schedule = schedule_of(choice.algorithm, self.rank, self.size, shape.root)
        tag = self.tag(choice, shape)
        tags = [tag + i for i in range(plan.depth)]
        rounds = reference.run(schedule, comm, shape, draft.source, draft.target, plan.segments, tags, space)
        call = shape.call(choice.algorithm.name)._replace(number=self.begun)
        return plan, reference.Walk(rounds, call, shape.nbytes, draft)

    def end_walk(self, plan: Any, walk: reference.Walk, timeout: float | None) -> None:
        """Wait for a call that the Python executor runs."""
        try:
            self.wait(walk, timeout)
        except BaseException as e:
            self.fail(walk, e)
        self.plans.keep(plan)

    def _divide_tags(self) -> None:
        """Divide the tags into ranges for kinds of calls; half of each range is for persistent calls."""
        calls = (self.endpoint.tag_limit - MEETINGS) // DEPTH
        self._persistent_calls = min(calls // 2, 1 << 16)
        self._calls = min(calls - self._persistent_calls, 1 << 16)
        self._kind_tags = (self._calls + self._persistent_calls) * DEPTH
        self._kinds = (self.endpoint.tag_limit - MEETINGS) // self._kind_tags
        self._persistent_inits = self._persistent_tags = 0
        self.divide_tags(self._calls, self._kinds, self._kind_tags, DEPTH)

    def meeting_tag(self, tag: int) -> int:
        """The tag of the messages of :meth:`Making.meet_some`, for a ``tag`` of the program's."""
        return self.endpoint.tag_limit - MEETINGS + tag % MEETINGS

    def persistent_number(self) -> int:
        """The base of the numbers of a new persistent call; each start of the call adds 1."""
        self._persistent_inits += 1
        return self._persistent_inits << 32

    def persistent_tag(self, choice: Choice, shape: Shape) -> int:
        """First of the tags of a new persistent call; at most 65536 such calls have different tags."""
        call = self._calls + self._persistent_tags % self._persistent_calls
        self._persistent_tags += 1
        return kind_of_call(choice.algorithm.name, shape) % self._kinds * self._kind_tags + call * DEPTH

    def choose(self, demand: Demand) -> Choice:
        """The algorithm of a call (see :func:`collectives.selection.policy.choose`).

        ``demand.apart`` says why no part of this call can go to the node-local engine, if those of other calls can.
        """
        flat = self.nodes.obstacle or demand.apart
        return self.rules.choose(demand._replace(apart=self.apart or demand.apart, flat=flat))

    def make_plan(self, choice: Choice, shape: Shape, engine: _core.Node | None) -> Plan:
        """Make a plan that executes ``shape`` by the algorithm of ``choice``.

        The node-local engine's part of it runs in the group ``engine``.
        """
        algorithm = choice.algorithm
        if algorithm.name == "shm" and engine is not None:
            return _core.NodePlan(engine, shape)
        if algorithm.name == hierarchy.NAME:
            return hierarchy_plan(self.nodes, shape, engine, self.endpoint)
        assert isinstance(algorithm, ScheduleAlgorithm)
        program = program_of(algorithm, self.rank, self.size, shape.in_place, shape.root)
        segments = 1
        if shape.cuts is None or shape.collective not in LOCAL_LENGTHS:
            segments = segments_for(choice, self.size, shape.nbytes, DEPTH, shape.root)
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
            shape.starts,
            shape.input_starts,
        )

    def torn(self, collective: str, error: BaseException, number: int | None = None) -> None:
        """Give up the call ``number`` after an exception; None: a call of several parts, between two of them."""
        number = self.begun + 1 if number is None else number
        self.note(MPIRun(collective, Call(number, collective, "", 0, "", "", None)), error)

    @contextlib.contextmanager
    def walking(self, collective: str) -> Iterator[None]:
        """Within this context a call of the Python executor begins, is counted, and ends.

        An exception that comes after the count, and that nothing has recorded, gives the call up: other ranks wait for
        it.
        """
        number = self.begun + 1
        try:
            yield
        except BaseException as e:
            if self.begun == number and self.broken is None:
                self.torn(collective, e, number)
            raise

    def obstacle_to_threads(self, user_defined: bool) -> str | None:
        """Why the progress thread cannot serve a non-blocking call, or None."""
        if not self.background:
            return "non-blocking schedules need MPI.THREAD_MULTIPLE"
        if user_defined and self.locks_ops:
            return "this MPI holds its lock while it applies a user-defined op, so no thread beside the program's may"
        return None

    def revoke(self) -> None:
        """Break the communicator for good: calls under way are given up, here and on the other ranks, with errors."""
        if self.abandoned:
            return
        run = MPIRun("Revoke", Call(0, "Revoke", "", 0, "", "", None))  # number 0: no call is to be completed
        self.note(run, CollectiveError("the communicator was revoked"))
        time.sleep(HEARD)
        self.abandon()

    def abandon(self) -> None:
        """Revoke the duplicate by MPI (ULFM), so that all calls under way on it end with errors on all live ranks.

        After this call MPI_Finalize has nothing of this communicator's to wait for.
        """
        if self.abandoned:
            return
        self.abandoned = True
        self.internal.Revoke()
        for operation in _core.queued(self):
            with contextlib.suppress(CollectiveError):
                operation.complete()
        _core.survived(self.broken is not None)
        self.broken = "it was revoked"
        self.close()
        heap.forget_the_dead()

    def check(self) -> None:
        """Raise CollectiveError if the communicator is broken, in a forked child, and after MPI_Finalize."""
        super().check()
        if _core.ended():
            raise CollectiveError("MPI has been finalized; there are no more collectives")

    def free(self) -> None:
        """Complete the queued operations and free the duplicate; collective."""
        super().free()
        if self.gpu is not None:
            self.gpu.leave()
        with meeting("freeing a communicator", self.internal, self, by_engine=False):
            pass  # from here on no rank reads this rank's flags, or asks
        if self.mpi_queries is not None:
            self.mpi_queries.close()
        if self.gpu is not None:
            self.gpu.free()
        self.node = None  # its operation refers to this context: only the garbage collector would free both
        self.internal.Free()
