"""The non-blocking and the persistent form of every collective, on the slow path."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi4py import MPI

from ..arguments.calls import Arguments, Collective, Draft, Options
from ..arguments.memory import OnDevice
from ..core import _core
from ..selection import hierarchy
from ..selection.policy import Choice
from ..trace.timeline import NONBLOCKING, PERSISTENT
from ..waiting.mpi_calls import MPIRun
from .blocking import DEFAULTS, Blocking, Seen
from .checks import Check, PendingCheck
from .requests import UNDER_WAY, HandedOver, HandedOverForGood, PersistentRequest, Request

__all__ = ["Nonblocking"]

NO_MEMORY = "there is no shared memory left"


class Nonblocking(Blocking):
    """The non-blocking and persistent calls of :class:`collectives.Communicator`, which derives from this class."""

    def _start(
        self, collective: Collective, arguments: Arguments, options: Options = DEFAULTS, seen: Seen | None = None
    ) -> MPI.Request:  # fmt: skip
        """Start a non-blocking call; below ``MPI.THREAD_MULTIPLE`` the MPI library executes it."""
        self._refuse_in_group(f"I{collective.name}")
        tick, context = _core.ticks(), self._enter()
        context.check_turn()
        try:
            draft, choice = self._prepare(collective, arguments, options, threads=True)
        except OnDevice as found:
            from . import device_requests  # nothing for GPUs is loaded before the first array on one

            return device_requests.start(self, context, collective, arguments, options, found)
        if choice.algorithm.name == "mpi":
            return self._start_by_mpi(draft, choice, arguments, tick)
        return Request(self._start_chosen(draft, choice, options, tick, context.library, seen=seen))

    def _start_draft(self, draft: Draft, then: Callable[[], None], seen: Seen | None = None) -> _core.Operation:
        """Start a non-blocking call without an MPI request; ``then`` is called at its end, in any thread."""
        tick = _core.ticks()
        self._enter().check_turn()
        choice = self._choose(draft, DEFAULTS, None, mpi="never")
        return self._start_chosen(draft, choice, DEFAULTS, tick, None, then, seen)

    def _start_chosen(
        self, draft: Draft, choice: Choice, options: Options, tick: int, library: _core.MPILibrary | None,
        then: Callable[[], None] | None = None, seen: Seen | None = None,
    ) -> _core.Operation:  # fmt: skip
        """Start a non-blocking call, which began at ``tick``, by a plan; with ``library`` it gets an MPI request."""
        self._remember(seen, draft, choice, options)
        part = next(self._parts(draft, choice, options, None))
        check = self._start_check(part, choice)
        try:
            operation = self._queue(choice, part, library, then)
        except BaseException as e:
            self._give_up_checked(draft.collective, e)
            raise
        operation.check = check
        self._enter().started(operation, draft.collective.name, choice.algorithm.name, draft.nbytes, tick)
        return operation

    def _start_by_mpi(
        self, draft: Draft, choice: Choice, arguments: Arguments, tick: int
    ) -> MPI.Request:  # fmt: skip
        """Start a non-blocking call that the MPI library executes."""
        context, collective = self._enter(), draft.collective
        context.ran(collective.name, "mpi", draft.nbytes, tick)
        check = self._start_check(draft, choice)
        try:
            given = self._for_mpi(draft, arguments)
            with context.blamed(MPIRun(collective.name, draft.shape.call("mpi"))):
                request = self._mpi("I" + collective.name)(*given.of(collective))
        except BaseException as e:
            self._give_up_checked(collective, e)
            raise
        # Of other calls mpi4py keeps the buffers until MPI completes the request.
        if given is arguments and not collective.reduces and collective.name != "allgatherv":
            draft.owners = ()
        run = self._hand_over(collective, draft)
        made = HandedOver.of(request, draft.owners, context, run)
        made._check = check
        made._record = self._record_of_mpi(NONBLOCKING, draft, context.begun, tick)
        return made

    def _init(
        self, collective: Collective, arguments: Arguments, options: Options = DEFAULTS,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:  # fmt: skip
        """Make a persistent call; this waits for all ranks if the node-local engine serves it or calls are checked."""
        self._refuse_in_group(f"{collective.method}_init")
        context = self._enter()
        try:
            draft, choice = self._prepare(collective, arguments, options, threads=True)
        except OnDevice as found:
            from . import device_requests

            return device_requests.init(self, context, collective, arguments, options, found)
        self._check(draft, choice, None, "_init")
        numbers = itertools.count(context.persistent_number())
        if choice.algorithm.name == "mpi":
            return self._init_by_mpi(draft, arguments, info, numbers)
        node_group = None
        if choice.algorithm.name in ("shm", hierarchy.NAME):  # ranks may start persistent calls in different orders
            call = draft.shape.call(choice.algorithm.name)
            node_group = context.another_node(call._replace(collective=f"{collective.name}_init"))
            if node_group is None:
                choice = self._choose(draft, options, options.algorithm, NO_MEMORY, mpi="named")
                draft = self._laid_out(draft, choice, options)
        draft = next(self._parts(draft, choice, options, None))
        tag = context.persistent_tag(choice, draft.shape)
        operation = context.operation(choice, draft.shape, None if node_group is None else node_group.engine)
        then, before = draft.store if draft.stores else None, draft.load if draft.loads else None
        operation.bind(
            draft.source, draft.target, tag, draft, (self, node_group), context.library, then, before, persistent=True
        )
        return self._lasting(operation, numbers)

    def _lasting(self, operation: _core.Operation, numbers: Iterator[int]) -> PersistentRequest:
        """The request of a persistent call, whose starts take ``numbers`` one after the other."""
        context = self._enter()

        def start() -> _core.Operation:
            if not context.usable:
                self._enter()  # which says why
            if not _ends_now(operation):  # a handler's exception came between its begin and the request
                raise ValueError(UNDER_WAY)
            number, tick = next(numbers), _core.ticks() if context.log is not None else 0
            try:
                operation.queue()
            except BaseException as e:
                context.fail(operation, e)
            if context.log is not None:
                operation.put_on_timeline(context.log, PERSISTENT, number, tick)
            return operation

        return PersistentRequest(start)

    def _init_by_mpi(
        self, draft: Draft, arguments: Arguments, info: MPI.Info, numbers: Iterator[int]
    ) -> MPI.Prequest:  # fmt: skip
        """Make a persistent call that the MPI library executes."""
        collective = draft.collective
        run = MPIRun(collective.name, draft.shape.call("mpi"))
        given = self._for_mpi(draft, arguments)
        with self._enter().blamed(run):
            request = self._mpi(f"{collective.method}_init")(*given.of(collective), info)
        made = HandedOverForGood.of(request, draft.owners, self._enter(), run)
        made._started = lambda tick: self._record_of_mpi(PERSISTENT, draft, next(numbers), tick)
        return made

    def _start_check(self, draft: Draft, choice: Choice) -> PendingCheck | None:
        """Begin to compare the ranks' calls before a non-blocking call; None if calls are not checked."""
        context = self._enter()
        if not context.checked:
            return None
        check = Check(context, f"i{draft.collective.name}", draft, choice)
        return PendingCheck(check, check.queue(self))

    def _queue(
        self, choice: Choice, draft: Draft, library: _core.MPILibrary | None, then: Callable[[], Any] | None = None
    ) -> _core.Operation:  # fmt: skip
        """Queue a non-blocking call by a plan; with ``library`` it gets an MPI request."""
        context = self._enter()
        draft.load()
        ends = [end for end in (draft.store if draft.stores else None, then) if end is not None]
        after = (lambda: [end() for end in ends]) if len(ends) > 1 else ends[0] if ends else None
        operation = context.operation(choice, draft.shape)
        return context.queue(operation, draft.source, draft.target, draft, self, library, after)

    def _record_of_mpi(self, form: int, draft: Draft, number: int, tick: int) -> tuple[_core.Log, int] | None:
        """If a timeline is recorded, enter a call of MPI's that is under way since ``tick``; return log and index."""
        log = self._enter().log
        if log is None:
            return None
        return log, log.add(
            form, draft.collective.name, "mpi", draft.nbytes, number, draft.shape.root, tick, ended=False
        )


def _ends_now(operation: _core.Operation) -> bool:
    """Whether an operation has ended, or is about to: MPI's waits see the end of its request a moment before.

    The progress thread may lose its core between the two, so the moment may be long.
    """
    while operation.ending:
        time.sleep(1e-5)
    return bool(operation.done)
