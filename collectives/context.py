"""What a communicator holds for the library: a duplicate of its own, the rules all ranks agreed on, and plans."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import pickle
import time
import zlib
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core, bootstrap, deaths, doors, heap, inquiry, mpilib, node, settings, trace, tuning
from .datatypes import DTYPE_CODES
from .diagnosis import Call
from .errors import CollectiveError
from .flight import Flight
from .leases import Lease, Leases
from .letters import Letters
from .making import Making, meeting
from .mpiruns import MPIRun, MPIWaiting
from .plans import Plans, Run, Shape
from .registry import ScheduleAlgorithm
from .schedule import Schedule, build
from .select import LOCAL, Choice, Rules, choose, load_of, segments_for

__all__ = ["Context", "duplicate", "schedule_of"]

MEETINGS = 16  # tags of messages by which some ranks meet
EAGER = 2048  # bytes that every MPI sends at once
DEPTH = 4  # segments of one call in flight, and so tags of one call
LOCAL_LENGTHS = ("gather", "scatter", "alltoall")  # of unequal blocks ranks know but some lengths
HEARD = 0.1  # s until MPI revokes: by then ranks test no sends, which Open MPI 5 may abort for once they have failed
LEAST = DTYPE_CODES["int64"], _core.OPS.index("min")  # of integers that ranks agree on something by

_library = mpilib.library()


@functools.lru_cache(maxsize=256)
def schedule_of(algorithm: ScheduleAlgorithm, rank: int, size: int, root: int = 0) -> Schedule:
    """The schedule of one rank, built once."""
    return build(algorithm, rank, size, root)


@functools.lru_cache(maxsize=256)
def program_of(algorithm: ScheduleAlgorithm, rank: int, size: int, in_place: bool, root: int = 0) -> _core.Program:
    """The schedule of one rank with its dependencies, for calls in place or out of place."""
    s = schedule_of(algorithm, rank, size, root)
    return _core.Program(s.steps, size, s.nblocks, s.scratch, in_place, s.input_block, s.vector_block, s.blockwise)


@functools.lru_cache(maxsize=1024)
def kind_of(algorithm: str, collective: str, root: int, dtype: int, op: Any) -> int:
    """A number that nearly always differs where one of these does, and is the same in all processes."""
    return zlib.crc32(repr((algorithm, collective, root, dtype, op if isinstance(op, int) else op is None)).encode())


def kind_of_call(choice: Choice, shape: Shape) -> int:
    """:func:`kind_of` of a call, from which its tags follow; bytes that are only moved match elements of any type.

    Long calls of different lengths do not match, either: Open MPI corrupts memory where a receive is too short for a
    message that it does not send at once. Short ones do, and MPI tells of the difference at once.
    """
    kind = kind_of(choice.algorithm.name, *shape[:2], -1 if shape.op is None else shape.dtype, shape.op)
    nbytes = shape.elements * shape.itemsize
    if nbytes <= EAGER or shape.collective in LOCAL_LENGTHS:
        return kind
    return zlib.crc32(nbytes.to_bytes(8, "little"), kind)


def duplicate(comm: MPI.Intracomm, info: MPI.Info | None = None) -> MPI.Intracomm:
    """MPI's duplicate of a communicator; CollectiveError where MPI has no more of them."""
    try:
        return comm.Dup(info)
    except MPI.Exception as e:
        if deaths.by_death(e):
            raise deaths.failure(comm, "Dup", e) from e
        if e.Get_error_class() in (MPI.ERR_COMM, MPI.ERR_TRUNCATE):
            raise
        why = str(e).splitlines()[0]
        raise CollectiveError(
            f"MPI makes no more communicators ({why}); call Free of those that are done with: each takes two of MPI's, "
            "and one of them stays when it is only collected"
        ) from e


class Context(MPIWaiting, Plans):
    """The library's side of one communicator; made on all its ranks together."""

    def __init__(self, visible: MPI.Intracomm, making: Making):
        Plans.__init__(self)
        self.library = _library
        self.internal = duplicate(MPI.Intracomm(visible))
        self.internal.Set_errhandler(MPI.ERRORS_RETURN)
        self.rank, self.size = self.internal.rank, self.internal.size
        self.broken: str | None = None
        Flight.sweep()
        offer, area = node.offer()
        mine = bootstrap.hello(self.rank, self.size, offer, self._settings(), trace.is_recording())
        known = bootstrap.introduce(self.rank, mine, making.gather(self.internal, mine))
        self.identity = known.identity
        agreed: settings.Agreed | Exception = pickle.loads(known.settings)
        if isinstance(agreed, Exception):
            self.internal.Free()
            raise agreed
        self.rules, self.checked = Rules(forced=agreed.forced), agreed.checked
        self.timeout, self.stall = agreed.timeout, agreed.stall
        self.layout = tuning.Layout.of(known.ranks_on)
        if agreed.table is not None:
            self.rules.tuned = tuning.pick(agreed.table, self.layout)
        self.yield_at_once = known.here > known.usable_cores
        self.locks_ops = mpilib.locks_ops()
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.endpoint = self.library.endpoint(self.internal.handle, self.internal)
        self._meet(known, making)
        self.group, self.node = self._join(known.offers, area, making)
        self.life = _core.Life(self.library, visible.handle)
        if self.node is not None:
            self.node.turn = self.turn
            self.node.ends_with(self.life)
        self.apart = node.why_apart(self.size, self.group, self.node)
        self._leases = Leases()
        self.adopt(self.rules)
        calls = (self.endpoint.tag_limit - MEETINGS) // DEPTH
        self._persistent_calls = min(calls // 2, 1 << 16)
        self._calls = min(calls - self._persistent_calls, 1 << 16)
        self._persistent_call = itertools.count()
        self._kind_tags = (self._calls + self._persistent_calls) * DEPTH
        self._kinds = (self.endpoint.tag_limit - MEETINGS) // self._kind_tags
        self.numbers.divide_tags(self._calls, self._kinds, self._kind_tags, DEPTH)
        self._persistent_inits = itertools.count(1)
        trace.join(self, *agreed.timeline, known.timeline)

    def _settings(self) -> bytes:
        return pickle.dumps(settings.agreed()) if self.rank == 0 else b""

    def _meet(self, known: bootstrap.Known, making: Making) -> None:
        """How to ask the other ranks what they do."""
        self.neighbours, self.letters = known.neighbours, None
        self.heard, self.left = {}, {}
        opened = making.gather(self.internal, doors.door()) if known.separated and mpilib.fears_the_dead() else []
        away = {rank: door for rank, door in enumerate(opened) if rank not in self.neighbours and door is not None}
        if len(self.neighbours) + 1 < self.size:
            self.letters = Letters(self.internal, self.endpoint.tag_limit, self, away)
        inquiry.register(self.identity, self)

    def _join(
        self, offers: dict[int, node.Offer], area: _core.HeapBlock | None, making: Making
    ) -> tuple[list[int], Any]:
        exchange = functools.partial(making.gather, self.internal)
        return node.join(self.rank, self.size, offers, area, exchange, self.library, self.endpoint)

    def _set_up(self, engine: _core.Node) -> None:
        """How ranks wait there, and the limits between its schemes: the same on all of them."""
        engine.yield_at_once = self.yield_at_once
        engine.set_limits(*self.rules.node_limits(self.yield_at_once))

    def adopt(self, rules: Rules) -> None:
        """Choose by these rules from now on; on all ranks together, while no call is under way."""
        self.rules = rules
        if self.node is not None:
            self._set_up(self.node)
            self.node.background = self.threaded
            if self.apart is None and not self.checked:
                reach = {name: rules.longest_local(name) for name in LOCAL}
                self.node.open({n: None if math.isinf(to) else int(to) for n, to in reach.items() if to >= 0})

    def groups(self) -> list[_core.Node]:
        """The communicator's groups of the node-local engine, those of persistent calls too."""
        return [*super().groups(), *self._leases.engines()]

    def another_node(self, call: Call) -> Lease | None:
        """A group of the node-local engine with an order of calls of its own, agreed by all ranks together.

        None, on all ranks, where there is no memory for it. ``call`` is what ranks that wait here tell the others.
        """
        with self.in_turn():
            idle = self._leases.idle()
            lease = self._leases.again(self.least(idle, call), self.forget_plans) if idle.size else None
            if lease is not None:
                return lease
            with meeting(call.collective, self.internal, self, call=call) as making:
                offer, area = node.offer()
                others = enumerate(making.gather(self.internal, offer))
                offers = {rank: theirs for rank, theirs in others if node.on_one_machine(offer, theirs)}
                group, engine = self._join(offers, area, making)
        if engine is None or node.why_apart(self.size, group, engine) is not None:
            return None
        self._set_up(engine)
        return self._leases.new(engine)

    def least(self, numbers: np.ndarray, call: Call) -> np.ndarray:
        """The least of all ranks' integers, element by element, by the node-local engine; as a part of ``call``."""
        found = np.empty_like(numbers)
        shape = Shape("allreduce", 0, numbers.size, numbers.itemsize, *LEAST, False)
        run = self.acquire(self.choose("allreduce", numbers.nbytes, "shm", True, False), shape)
        run.start(_core.address(numbers), _core.address(found), 0, (numbers, found))
        run.stands_for = call._replace(number=self.begun)
        try:
            self.wait(run, run.plan)
        except BaseException as e:
            self.fail(run, e)
        run.release()
        return found

    def tag(self, choice: Choice, shape: Shape) -> int:
        """First of the tags of the next call; calls come in the same order on all ranks.

        The node-local engine has numbers of its own: a call may go the short way there on some ranks only.
        """
        if choice.algorithm.name == "shm":
            return 0
        self.count(1)
        self.remember(shape.call, choice.algorithm.name)
        kind = kind_of_call(choice, shape)
        if self.node is not None:
            self.node.mix(kind)
        return self.numbers.tag(kind)

    def meeting_tag(self, tag: int) -> int:
        """Of the messages by which some of the ranks meet, for a tag of the program's."""
        return self.endpoint.tag_limit - MEETINGS + tag % MEETINGS

    def persistent_number(self) -> int:
        """What the numbers of the next persistent call's starts begin from."""
        return next(self._persistent_inits) << 32

    def persistent_tag(self, choice: Choice, shape: Shape) -> int:
        """Tags of a persistent call, its own while there are no more than 65536 of them."""
        call = self._calls + next(self._persistent_call) % self._persistent_calls
        return kind_of_call(choice, shape) % self._kinds * self._kind_tags + call * DEPTH

    def skip_persistent_tag(self) -> None:
        """Note a persistent call that needs no tags, which others may have drawn for it."""
        next(self._persistent_call)

    def choose(
        self, collective: str, nbytes: int, forced: str | None, commutes: bool, linear: bool, apart: str | None = None,
        exact: bool = False, mpi: bool = True,
    ) -> Choice:  # fmt: skip
        """The algorithm of a call (see :func:`collectives.select.choose`), remembered.

        ``apart``: why this call cannot go to the node-local engine.
        """
        apart = self.apart or apart
        key = collective, nbytes, forced, commutes, linear, apart, exact, mpi
        choices = self.rules.choices
        choice = choices.get(key)
        if choice is None:
            if len(choices) > 10_000:
                choices.clear()
            choice = choices[key] = choose(
                self.rules, collective, nbytes, forced=forced, commutes=commutes, linear=linear, apart=apart,
                exact=exact, mpi=mpi,
            )  # fmt: skip
        return choice

    def expected(self, collective: str, choice: Choice, nbytes: int) -> float | None:
        """Seconds that the call should take, where the selection table has a model of it."""
        models = self.rules.tuned.models if self.rules.tuned is not None else {}
        model = models.get((collective, choice.algorithm.name, choice.segment))
        if model is None:
            return None
        return model.seconds(load_of(choice, self.size, nbytes, DEPTH), nbytes)

    def acquire(self, choice: Choice, shape: Shape, engine: _core.Node | None = None) -> Run:
        """A plan for a call, from the cache or made now; ``engine`` is the group of a persistent call."""
        Flight.sweep()
        self.check()
        engine = engine or self.node
        key = choice, shape, engine
        return Run(self, key, self.idle(key) or self._plan(choice, shape, engine))

    def cached_plans(self) -> _core.CachedPlans | None:
        """Where calls like earlier ones are kept; None where each is to be compared with the other ranks' first."""
        return None if self.checked else _core.CachedPlans(self, self.life)

    def plan_for(self, cached: _core.CachedPlan) -> _core.Plan | _core.NodePlan:
        """A plan for a call like an earlier one."""
        self.check()
        key = cached.choice, cached.shape, self.node
        return self.idle(key) or self._plan(*key)

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

    def obstacle_to_threads(self, user_defined: bool) -> str | None:
        """Why the progress thread cannot serve a non-blocking call, or None."""
        if not self.threaded:
            return "non-blocking schedules need MPI.THREAD_MULTIPLE"
        if user_defined and self.locks_ops:
            return "this MPI holds its lock while it applies a user-defined op, so no thread beside the program's may"
        return None

    def revoke(self) -> None:
        """Give up what is under way here, for good, and tell the others, whose calls end in errors."""
        if self.abandoned:
            return
        run = MPIRun("Revoke", Call(0, "Revoke", "", 0, "", "", None))  # before all calls: none is to be completed
        self.note(run, CollectiveError("the communicator was revoked"))
        time.sleep(HEARD)
        self.abandon()

    def abandon(self) -> None:
        """Give up what is under way, on all ranks that live, because of one that died; what waits here ends in errors.

        Nothing is left that MPI_Finalize could wait for.
        """
        if self.abandoned:
            return
        self.abandoned = True
        self.internal.Revoke()
        for flight in Flight.of(self):
            with contextlib.suppress(CollectiveError):
                flight.finish()
        _core.survived(self.broken is not None)
        self.broken = "it was revoked"
        if self.node is not None:
            self.node.open({})
        heap.forget_the_dead()

    def check(self) -> None:
        """Refuse work on a communicator that failed, in a forked child, and after MPI's end."""
        super().check()
        if _core.ended():
            raise CollectiveError("MPI has been finalized; there are no more collectives")

    def free(self) -> None:
        """Complete what is under way and free the duplicate; collective."""
        for flight in Flight.of(self):
            flight.finish()
        self.forget_plans()
        if self.node is not None:
            self.node.open({})
        with meeting("freeing a communicator", self.internal, self, by_engine=False):
            pass  # now nobody looks at this rank's flags any more
        self.internal.Free()
