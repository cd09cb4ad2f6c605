"""Blocking calls on the slow path: check the arguments, choose an algorithm, run a plan."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from ..arguments import exchanges, movement, reductions
from ..arguments.buffers import op_code
from ..arguments.calls import COLLECTIVES, EXCHANGES, Arguments, Collective, Draft, Options, checked_root
from ..arguments.datatypes import DTYPE_CODES, of_any
from ..arguments.memory import OnDevice
from ..arguments.shape import Shape, describing, kind_of_call
from ..core import _core
from ..runtime.mpi_context import MPIContext
from ..schedules.registry import ScheduleAlgorithm, algorithms, find
from ..selection.policy import ByMPI, Choice, Demand, Rules
from ..waiting.mpi_calls import BOUNDED, MPIRun
from . import counts, exact_sums, wide_accumulation
from .by_mpi import Repeated, method_of
from .checks import Check

__all__ = ["Blocking"]

#: What the fast path has parsed of a call: the key of a cached plan, and the addresses of input and vector.
Seen = tuple[Any, int, int]

DEFAULTS = Options()
#: Most bytes of an element that the node-local engine serves.
LONGEST_ELEMENT = 32 << 10
#: Most bytes of one element of each rank, together: all ranks' elements must fit in one staging area.
LONGEST_ELEMENTS = 512 << 10
_BARRIER = COLLECTIVES["barrier"]


class Blocking:
    """The blocking calls of :class:`collectives.Communicator`, which derives from this class."""

    _context: MPIContext | None
    _open_group: Any = None

    if TYPE_CHECKING:

        def _enter(self) -> MPIContext: ...

    @property
    def _entered(self) -> MPIContext:
        """The library's side of the communicator, for what runs within a call: `_enter` has checked it before."""
        assert self._context is not None
        return self._context

    def _done(self, draft: Draft, choice: Choice, tick: int) -> None:
        """Record that a blocking call, which began at ``tick``, has ended."""
        self._entered.ended(draft.collective.name, choice.algorithm.name, draft.nbytes, draft.shape.root, tick)

    def _adopt_rules(self, rules: Rules) -> None:
        """Choose algorithms by ``rules`` from now on. All ranks call this together, while no call is under way."""
        self._enter().adopt(rules)

    def _run(
        self, collective: Collective, arguments: Arguments, options: Options = DEFAULTS, seen: Seen | None = None
    ) -> None:  # fmt: skip
        """Run a blocking call, or add it to an open group; ``seen`` is what the fast path parsed of it, if it could."""
        if self._open_group is not None:
            self._open_group.add(collective, arguments, options)
            return
        context = self._enter()
        if not context.turn.take():
            context.take_turn()
        try:
            self._run_now(context, collective, arguments, options, seen)
        finally:
            context.turn.give()

    def _run_now(
        self, context: MPIContext, collective: Collective, arguments: Arguments, options: Options,
        seen: Seen | None = None,
    ) -> None:  # fmt: skip
        """Run a blocking call, once this thread has the turn."""
        tick = _core.ticks()
        try:
            draft, choice = self._prepare(collective, arguments, options)
        except OnDevice as found:
            if collective.exchanges:
                raise
            from . import device_calls  # nothing for GPUs is loaded before the first array on one

            device_calls.run(self, context, collective, arguments, options, found)
            return
        self._remember(seen, draft, choice, options)
        if choice.algorithm.name == "mpi":
            self._check(draft, choice, options.timeout)
            self._run_mpi(collective, draft, choice, arguments, options.timeout, seen)
        else:
            self._run_parts(draft, choice, options)
        self._done(draft, choice, tick)

    def _run_mpi(
        self, collective: Collective, draft: Draft, choice: Choice, arguments: Arguments, timeout: float | None,
        seen: Seen | None,
    ) -> None:  # fmt: skip
        """Run a blocking call by the MPI library; as bytes if a selection table chose it and nothing is reduced."""
        context = self._entered
        bounded = timeout is not None or context.timeout is not None
        run = self._hand_over(collective, draft, BOUNDED if bounded else "mpi")
        blocking, starting = self._mpi(collective.method), self._mpi("I" + collective.name)
        as_bytes = choice.tuned and not (collective.reduces or collective is _BARRIER or collective.exchanges)
        if as_bytes:
            given = movement.as_bytes(
                collective, draft.shape, draft.source, draft.target, context.rank, context.size
            )  # fmt: skip
            draft.load()
            context.by_mpi(run, blocking, starting, given.of(collective), timeout)
            draft.store()
        else:
            given = self._for_mpi(draft, arguments)
            context.by_mpi(run, blocking, starting, given.of(collective), timeout)
        if seen is None or bounded or collective.exchanges or not (as_bytes or given is arguments):
            return
        repeated = None if _moved(draft, seen) else Repeated.of(draft, arguments, as_bytes)
        if repeated is not None:
            context.keep_plan(seen[0], _core.CachedPlan((choice, draft.shape, None), 0, None, repeated))

    def _for_mpi(self, draft: Draft, arguments: Arguments) -> Arguments:
        """The arguments for mpi4py's own method."""
        if draft.collective.reduces or draft.collective is _BARRIER or draft.collective.exchanges:
            return arguments
        context = self._entered
        return movement.for_mpi(draft, arguments, context.rank, context.size)

    def _remember(self, seen: Seen | None, draft: Draft, choice: Choice, options: Options) -> None:
        """Keep a call's plan for the fast path, if a call with the same key needs nothing but other addresses."""
        if seen is None:
            return
        moved = _moved(draft, seen)
        if draft.collective.exchanges:  # which the fast path lays out as the draft does, if the algorithm allows it
            moved = draft.shape.starts is None
        context, shape, name = self._entered, draft.shape, choice.algorithm.name
        if moved or name in ("shm", "mpi") or self._form(draft, choice, options) is not None:
            return
        described = kind_of_call(name, shape), describing(shape, name)
        context.keep_plan(seen[0], _core.CachedPlan((choice, shape, context.node), *described))

    def _run_draft(self, draft: Draft, options: Options, seen: Seen | None = None) -> None:
        """Run a blocking call whose arguments are checked: grouped calls that were fused, or a call of torch's."""
        tick, context = _core.ticks(), self._enter()
        with context.in_turn():
            choice = self._choose(draft, options, options.algorithm, mpi="never")
            self._remember(seen, draft, choice, options)
            self._run_parts(draft, choice, options)
        self._done(draft, choice, tick)

    def _hand_over(self, collective: Collective, draft: Draft, how: str = "mpi") -> MPIRun:
        """Count a call that the MPI library executes, as ``how`` says, and make the run that describes it."""
        context = self._entered
        call = draft.shape.call(how)._replace(collective=collective.name)
        context.count_mpi(lambda: call)
        call = call._replace(number=context.begun)
        return MPIRun(collective.name, call, buffers=draft.owners)

    def _mpi(self, method: str) -> Any:
        """mpi4py's own method of this name, bound to this communicator."""
        return method_of(method).__get__(self)

    def _refuse_in_group(self, what: str) -> None:
        if self._open_group is not None:
            raise ValueError(f"{what} within a group: only blocking calls can be grouped")

    # Arguments, and the choice of the algorithm

    def _prepare(
        self, collective: Collective, arguments: Arguments, options: Options, threads: bool = False
    ) -> tuple[Draft, Choice]:
        """Check a call's arguments and choose its algorithm; ``threads``: the progress thread may have to run it."""
        context = self._entered
        draft = self._draft(context, collective, arguments, options.timeout)
        if options.stream is not None:
            raise ValueError("stream: no argument is an array on a GPU")
        obstacle = draft.obstacle
        if obstacle is None and threads:
            obstacle = context.obstacle_to_threads(collective.reduces and op_code(arguments.op) is None)
        forced = options.algorithm
        if obstacle is not None:
            forced = _hand_over(collective, obstacle, forced)
        choice = self._choose(draft, options, forced, mpi="named" if threads else "chosen")
        if choice.algorithm.name == "mpi":
            _check_mpi(draft, options.engine, obstacle)
        return self._laid_out(draft, choice, options), choice

    def _laid_out(self, draft: Draft, choice: Choice, options: Options) -> Draft:
        """The call as its algorithm needs it: schedules with steps of several blocks need all blocks side by side."""
        algorithm = choice.algorithm
        if draft.in_order is None or algorithm.name in ("shm", "mpi"):
            return draft
        anywhere = isinstance(algorithm, ScheduleAlgorithm) and algorithm.divisible(self._entered.size)
        return draft if anywhere and options.engine != "python" else draft.in_order()

    def _choose(
        self, draft: Draft, options: Options, forced: str | None, apart: str | None = None, mpi: ByMPI = "chosen"
    ) -> Choice:  # fmt: skip
        """The algorithm of a call; ``mpi``: when the MPI library's own may serve it."""
        context = self._entered
        if mpi == "chosen" and (draft.unknown is not None or options.engine is not None):
            mpi = "named"
        if options.engine == "python":
            apart = "engine='python' runs schedules"
        elif draft.shape.itemsize > min(LONGEST_ELEMENT, LONGEST_ELEMENTS // context.size):
            apart = f"elements of {draft.shape.itemsize} bytes are too long"
        linear, exact = self._linear(draft, options), wide_accumulation.needed(draft.shape, False)
        return context.choose(
            Demand(draft.collective.name, draft.agreed, forced, draft.commutes, linear, apart, exact, mpi)
        )

    def _foresee(self, name: str, nbytes: int, dtype: Any, op: Any) -> tuple[Draft, Choice]:
        """A blocking call of ``nbytes`` bytes without memory, and the choice that it would make."""
        algorithms(name)  # raises if there is no such collective
        if operator.index(nbytes) < 0:
            raise ValueError(f"nbytes: {nbytes} is negative")
        collective = (COLLECTIVES | EXCHANGES)[name]
        if collective.reduces:
            draft = reductions.outline(collective, nbytes, of_any(dtype), op)
        else:
            draft = movement.outline(collective, nbytes)
        if draft.obstacle is None:
            return draft, self._choose(draft, DEFAULTS, None)
        _check_mpi(draft, None, draft.obstacle)
        return draft, replace(self._choose(draft, DEFAULTS, "mpi"), segment=None, why=draft.obstacle)

    def _linear(self, draft: Draft, options: Options) -> bool:
        """Whether the call must fold in rank order; exact sums do not depend on an order."""
        asked = self._entered.deterministic if options.deterministic is None else options.deterministic
        return bool(asked) and draft.collective.reduces and draft.shape.op != wide_accumulation.REPRODUCIBLE

    def _form(self, draft: Draft, choice: Choice, options: Options) -> wide_accumulation.Form | None:
        """What the call must run on in place of its own elements, or None."""
        if not draft.collective.reduces or choice.algorithm.name in ("shm", "mpi"):
            return None
        scheduled = isinstance(choice.algorithm, ScheduleAlgorithm)
        return wide_accumulation.form(draft.shape, self._entered.size, self._linear(draft, options), scheduled)

    def _parts(self, draft: Draft, choice: Choice, options: Options, most: int | None) -> Iterator[Draft]:
        """The calls to run for one: the call itself, or calls on temporaries of up to ``most`` bytes each.

        All of them use ``choice``, which was made for the caller's length and is the one that ``explain`` shows.
        """
        form = self._form(draft, choice, options)
        if form is None:
            yield draft
            return
        context = self._entered
        yield from wide_accumulation.parts(draft, context.rank, context.size, most, form)

    def _draft(
        self, context: MPIContext, collective: Collective, arguments: Arguments, timeout: float | None = None
    ) -> Draft:
        """Check a call; ``timeout`` bounds the exchange that a reduce-scatter without ``recvcounts`` needs for that."""
        if collective.rooted:
            arguments.root = checked_root(arguments.root, context.size)
        if collective is _BARRIER:
            shape = Shape("barrier", 0, 1, 1, DTYPE_CODES["uint8"], op_code(MPI.BOR), True)
            return Draft(collective, shape, context.token, context.token, 0, context)
        if collective.reduces:
            if collective.name == "reduce_scatter" and arguments.recvcounts is None:
                run = functools.partial(self._run, options=Options(timeout=timeout))
                arguments.recvcounts = counts.of_all(run, collective, arguments, context)
            return reductions.draft(collective, arguments, context.library, context.rank, context.size)
        if collective.exchanges:
            return exchanges.draft(collective, arguments, self._peers(context, collective), context.rank, context.size)
        return movement.draft(collective, arguments, context.rank, context.size)

    def _peers(self, context: MPIContext, collective: Collective) -> _core.Peers:
        """With whom this rank exchanges blocks: with all, or with its neighbours in the communicator's topology."""
        if collective.name == "alltoallw":
            if context.all_peers is None:
                everybody = tuple(range(context.size))
                context.all_peers = _core.Peers(context.size, everybody, everybody)
            return context.all_peers
        if context.near_peers is None:
            topology: Any = self
            sources, targets = map(tuple, topology.inoutedges)
            crossed = topology.Get_topology() == MPI.CART
            context.near_peers = _core.Peers(context.size, sources, targets, crossed)
        return context.near_peers

    # COLLECTIVES_CHECK

    def _check(self, draft: Draft, choice: Choice, timeout: float | None, method: str = "") -> None:
        """Wait until all ranks make this call, where calls are checked; CollectiveMismatch on all if they differ.

        ``method`` is added to the collective's name: that of a set-up.
        """
        context = self._entered
        if not context.checked:
            return
        check = Check(context, draft.collective.name + method, draft, choice)
        operation = check.start()
        try:
            context.wait(operation, timeout)
            check.compare()
        except BaseException as e:
            context.fail(operation, e)
        operation.release()

    def _give_up_checked(self, collective: Collective, error: BaseException) -> None:
        """Give up a call that could not begin, if calls are checked: after the comparison, other ranks wait for it.

        All ranks refuse equal arguments alike, this library by TypeError or ValueError; so such a call is only dropped.
        """
        context = self._entered
        if context.checked and context.broken is None and not isinstance(error, (TypeError, ValueError, MPI.Exception)):
            context.torn(collective.name, error)

    # Execution

    def _run_parts(self, draft: Draft, choice: Choice, options: Options) -> None:
        """Run a blocking call, in several parts if it needs temporaries.

        An exception between two parts, of a signal handler say, gives the call up: other ranks wait for the next one.
        """
        context = self._entered
        begun = context.begun
        try:
            self._check(draft, choice, options.timeout)
            is_whole = self._run_each(context, draft, choice, options)
        except BaseException as e:
            waited_for = context.begun != begun or context.checked and not isinstance(e, (TypeError, ValueError))
            if waited_for and context.broken is None:
                context.torn(draft.collective.name, e)
            raise
        if is_whole:  # last, as no rank waits for it
            draft.store()

    def _run_each(self, context: MPIContext, draft: Draft, choice: Choice, options: Options) -> bool:
        """Run the parts of a call; whether there was one only, the call itself, whose ``store`` is yet to be made."""
        if exact_sums.serves(draft, choice, options):
            run_part = functools.partial(self._run_now, context)
            exact_sums.run(run_part, context.rank, context.size, draft, options.timeout)
            return False
        run = self._reference if options.engine == "python" else self._blocking
        for part in self._parts(draft, choice, options, wide_accumulation.MOST):
            run(choice, part, options.timeout)
            if part is draft:
                return True
            part.store()
        return False

    def _blocking(self, choice: Choice, draft: Draft, timeout: float | None) -> None:
        """Run a blocking call by the C executor or the engine; its ``store`` is left to the caller."""
        context = self._enter()
        draft.load()
        context.run(context.operation(choice, draft.shape), draft.source, draft.target, draft, timeout)

    def _reference(self, choice: Choice, draft: Draft, timeout: float | None) -> None:
        """Run a blocking call in the Python executor; its ``store`` is left to the caller."""
        context, shape = self._enter(), draft.shape
        if shape.op is not None and not isinstance(shape.op, int):
            raise ValueError("engine: 'python' applies the predefined ops only")
        draft.load()
        with context.walking(draft.collective.name):
            context.end_walk(*context.begin_walk(choice, draft, context.internal), timeout)


def _moved(draft: Draft, seen: Seen) -> bool:
    """Whether a call runs on other memory than what the fast path has parsed of it."""
    return bool(draft.loads or draft.stores) or (draft.source, draft.target) != seen[1:]


def _hand_over(collective: Collective, obstacle: str, algorithm: str | None) -> str:
    """``"mpi"``, for a call that this library cannot serve; ValueError if another ``algorithm`` was asked for."""
    if algorithm not in (None, "mpi"):
        find(collective.name, algorithm)
        raise ValueError(f"algorithm {algorithm!r} cannot serve this call: {obstacle}")
    return "mpi"


def _check_mpi(draft: Draft, engine: str | None, obstacle: str | None) -> None:
    """Raise an error for a call that the MPI library cannot serve; ``obstacle``: why this library cannot either."""
    why = f" (and ours cannot: {obstacle})" if obstacle else ""
    if draft.unknown is not None:
        kind = ValueError if "collectives." in draft.unknown else TypeError
        if obstacle:
            raise kind(f"neither this library nor MPI serves this call: {obstacle}; MPI does not know {draft.unknown}")
        raise kind(f"algorithm 'mpi' cannot serve {draft.unknown}, which MPI does not know")
    if engine is not None:
        raise ValueError(f"engine: the MPI library serves this call; engine={engine!r} runs schedules{why}")
