"""Calls that end later: the non-blocking and the persistent form of every collective."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from . import _core
from .calls import Arguments, Collective, Draft, Options
from .checks import Check, PendingCheck
from .context import kind_of_call
from .flight import Flight, NodeFlight, PlanFlight, ShortCall
from .leases import Lease
from .mpiruns import MPIRun
from .operations import DEFAULTS, Operations, Seen
from .plans import Shape
from .request import HandedOver, HandedOverForGood, PersistentRequest, Request
from .select import Choice
from .timeline import NONBLOCKING, PERSISTENT

__all__ = ["Later"]

NO_MEMORY = "there is no shared memory left"


class Later(Operations):
    """What :class:`collectives.Communicator` does with a call that it does not wait for; mixed into it."""

    def _start(
        self, collective: Collective, arguments: Arguments, options: Options = DEFAULTS, seen: Seen | None = None
    ) -> MPI.Request:  # fmt: skip
        """A non-blocking call; below ``MPI.THREAD_MULTIPLE`` it is the MPI library's own."""
        self._refuse_in_group(f"I{collective.name}")
        begin, tick = time.perf_counter(), _core.ticks()
        context = self._enter()
        context.check_turn()
        draft, choice = self._prepare(collective, arguments, options, threads=True)
        self._remember(seen, draft, choice, options)
        self._record(collective.name, choice.algorithm.name, draft.nbytes, begin)
        draft = next(self._parts(draft, choice, options, None))
        check = self._start_check(f"i{collective.name}", draft, choice) if context.checked else None
        if choice.algorithm.name == "mpi":
            given = self._for_mpi(draft, arguments)
            with context.blamed(MPIRun(collective.name, draft.shape.call("mpi"))):
                request = self._mpi("I" + collective.name)(*given.of(collective))
            if given is arguments and not collective.reduces:  # mpi4py holds them, to the end that MPI knows of
                draft.owners = ()
            run = self._hand_over(collective, draft)
            made = HandedOver.of(request, draft.owners, context, run)
            made._check = check
            made._record = self._started(
                NONBLOCKING, collective, choice, draft.nbytes, draft.shape, context.begun, tick
            )
            return made
        flight = self._launch(choice, draft)
        flight.check = check
        return self._requested(flight, collective, choice, draft.nbytes, draft.shape, tick)

    def _requested(
        self, flight: Flight, collective: Collective, choice: Choice, nbytes: int, shape: Shape, tick: int
    ) -> Request:  # fmt: skip
        """The request of a non-blocking call under way since a tick."""
        number = flight.run.number or 0
        flight.record = self._started(NONBLOCKING, collective, choice, nbytes, shape, number, tick)
        return Request(flight)

    def _init(
        self, collective: Collective, arguments: Arguments, options: Options = DEFAULTS,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:  # fmt: skip
        """A persistent call."""
        self._refuse_in_group(f"{collective.method}_init")
        draft, choice = self._prepare(collective, arguments, options, threads=True)
        if self._enter().checked:
            self._check(f"{collective.name}_init", draft, choice, None)
        numbers = itertools.count(self._enter().persistent_number())
        if choice.algorithm.name == "mpi":
            run = MPIRun(collective.name, draft.shape.call("mpi"))
            given = self._for_mpi(draft, arguments)
            with self._enter().blamed(run):
                request = self._mpi(f"{collective.method}_init")(*given.of(collective), info)
            made = HandedOverForGood.of(request, draft.owners, self._enter(), run)
            nbytes, shape = draft.nbytes, draft.shape
            made._started = lambda tick: self._started(
                PERSISTENT, collective, choice, nbytes, shape, next(numbers), tick
            )
            return made
        context = self._enter()
        lease = None
        if choice.algorithm.name == "shm":  # ranks may start their persistent calls in different orders
            call = draft.shape.call("shm")
            lease = context.another_node(call._replace(collective=f"{collective.name}_init"))
            if lease is None:
                choice = self._choose(draft, options, options.algorithm, NO_MEMORY, mpi=False)
        draft = next(self._parts(draft, choice, options, None))
        tag = context.persistent_tag(choice, draft.shape)
        if draft.loads or draft.stores:
            return PersistentRequest(lambda: self._start_again(choice, draft, tag, lease, next(numbers)))
        if lease is None:
            return self._lasting(self._planned(collective, choice, draft, tag), context.node, numbers)
        flight = NodeFlight()
        flight.bind(_core.NodePlan(lease.engine, draft.shape), draft.source, draft.target, draft)
        flight.lease(context, lease.engine, (self, lease))
        return self._lasting(flight, lease.engine, numbers)

    def _planned(self, collective: Collective, choice: Choice, draft: Draft, tag: int) -> PlanFlight:
        """A persistent call by a schedule on the program's own memory."""
        context, flight = self._enter(), PlanFlight()
        plan: Any = context.acquire(choice, draft.shape).plan
        kind = kind_of_call(choice, draft.shape)
        cached = _core.CachedPlan(collective.name, choice, draft.shape, draft.nbytes, kind)
        flight.bind(context, cached, plan, draft.source, draft.target, tag, draft, self)
        return flight

    def _set_up(self, flight: NodeFlight) -> PersistentRequest | None:
        """A persistent call that came the short way; None, on all ranks, where there is no memory for it."""
        context = self._enter()
        call = ShortCall(flight, None, None).call()
        lease = context.another_node(call._replace(collective=f"{call.collective}_init"))
        if lease is None:
            return None
        numbers = itertools.count(context.persistent_number())
        context.skip_persistent_tag()
        flight.lease(context, lease.engine, (self, lease))
        return self._lasting(flight, lease.engine, numbers)

    def _lasting(
        self, flight: NodeFlight | PlanFlight, engine: _core.Node | None, numbers: Iterator[int]
    ) -> PersistentRequest:  # fmt: skip
        """The request of a persistent call on the program's own memory, in a group of the node-local engine or none."""
        context = self._enter()

        def launch() -> NodeFlight | PlanFlight:
            number, log, flight.record = next(numbers), context.log, None
            tick = 0 if log is None else _core.ticks()
            if context.broken is not None or context.life.ended or _core.ended():
                self._enter()  # which says why there are no more
            if context.heard or engine is not None and engine.given_up:
                context.begin_again(flight)
            else:
                flight.again()
            return flight if log is None else flight.recorded(log, PERSISTENT, number, tick)

        return PersistentRequest(launch)

    def _start_again(self, choice: Choice, draft: Draft, tag: int, lease: Lease | None, number: int) -> Flight:
        """A start of a persistent call."""
        tick = _core.ticks()
        flight = self._launch(choice, draft, tag, lease)
        flight.record = self._started(PERSISTENT, draft.collective, choice, draft.nbytes, draft.shape, number, tick)
        return flight

    def _start_draft(
        self, collective: Collective, draft: Draft, options: Options, then: Callable[[], None] | None = None
    ) -> Flight:  # fmt: skip
        """A non-blocking call without a request of MPI's; ``then`` runs at its end, in whichever thread that is."""
        begin, tick = time.perf_counter(), _core.ticks()
        self._enter().check_turn()
        choice = self._choose(draft, options, options.algorithm, mpi=False)
        self._record(collective.name, choice.algorithm.name, draft.nbytes, begin)
        draft = next(self._parts(draft, choice, options, None))
        check = self._start_check(f"i{collective.name}", draft, choice) if self._enter().checked else None
        draft.load()
        ends = [end for end in (draft.store if draft.stores else None, then) if end is not None]
        after = (lambda: [end() for end in ends]) if len(ends) > 1 else ends[0] if ends else None
        flight = self._fly(choice, draft.shape, draft.source, draft.target, draft, after, visible=False)
        flight.check = check
        number = flight.run.number or 0
        flight.record = self._started(NONBLOCKING, collective, choice, draft.nbytes, draft.shape, number, tick)
        return flight

    def _start_check(self, name: str, draft: Draft, choice: Choice) -> PendingCheck:
        """The same, without waiting, for a non-blocking call."""
        check = Check(self._enter(), name, draft, choice)
        run = check.start()
        return PendingCheck(check, Flight(self._enter(), run, self))

    def _launch(self, choice: Choice, draft: Draft, tag: int | None = None, lease: Lease | None = None) -> Flight:
        draft.load()
        then = draft.store if draft.stores else None
        return self._fly(choice, draft.shape, draft.source, draft.target, draft, then, tag, lease)

    def _fly(
        self, choice: Choice, shape: Shape, source: int, target: int, owners: Any,
        then: Callable[[], Any] | None = None, tag: int | None = None, lease: Lease | None = None,
        visible: bool = True,
    ) -> Flight:  # fmt: skip
        """Start a run that goes on by itself; ``tag`` and perhaps ``lease`` are a persistent request's.

        ``visible``: it gets a request of MPI's.
        """
        context = self._enter()
        run = context.acquire(choice, shape, None if lease is None else lease.engine)
        try:
            run.start(source, target, context.tag(choice, shape) if tag is None else tag, owners)
            if tag is not None:  # ranks may start persistent requests in different orders
                run.number = None
            context.look_for_quitters(run)
            return Flight(context, run, (self, lease), then, context.library if visible else None)
        except BaseException as e:
            context.fail(run, e)

    def _started(
        self, form: int, collective: Collective, choice: Choice, nbytes: int, shape: Shape, number: int, begin: int
    ) -> tuple[_core.Log, int] | None:  # fmt: skip
        """Record a call that is under way since a tick; where, if anywhere."""
        log = self._enter().log
        if log is None:
            return None
        name = choice.algorithm.name
        return log, log.add(form, collective.name, name, nbytes, number, shape.root, begin, ended=False)
