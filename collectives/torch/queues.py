"""The ordered queues of a group's calls: one for calls of the program, others for calls of callbacks of futures."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import torch.distributed as dist

from ..core import _core
from ..errors import CollectiveError
from . import any_source
from .engines import Engine, engine_for
from .store import Exchange, connection_to
from .work import Callbacks, lateness

__all__ = ["Queue", "Queues"]

_log = logging.getLogger("collectives")


class _Meanwhile:
    """What a rank does while it waits for a call. The context has it, and it does not have the context."""

    aborted: CollectiveError | None = None

    def look(self) -> None:
        """Raise the error of a group that has been aborted; find messages for receives from any rank."""
        if self.aborted is not None:
            raise self.aborted
        any_source.match_all()


class Queue:
    """An ordered queue of calls: an engine of its own, and the thread for the callbacks of its calls' futures."""

    def __init__(self, name: str, engine: Engine):
        self.name, self.engine, self.callbacks = name, engine, engine.callbacks
        engine.context.lateness = lateness  # type: ignore[method-assign, assignment]
        self._meanwhile = _Meanwhile()
        engine.context.meanwhile = self._meanwhile.look  # type: ignore[method-assign]

    def abort(self) -> None:
        """End the calls under way by an error, on the other ranks too. Waits end where they wait, within 20 ms."""
        context = self.engine.context
        self._meanwhile.aborted = CollectiveError("the process group has been aborted")
        for operation in context.pending()[:1]:  # with it all that are queued
            context.note(operation, self._meanwhile.aborted)
        context.give_up_messages()


class Queues:
    """The queues of one group. RuntimeError if one is needed after the group has been destroyed."""

    def __init__(self, name: str, engine: Engine, exchange: Exchange):
        """``exchange`` is the group's. Later queues use its store and its timeout, too."""
        self._name, self._exchange, self.timeout = name, exchange, exchange.timeout
        self._main: Queue | None = Queue(name, engine)
        self._others: dict[str, Queue] = {}  # by the name of the queue whose callbacks make their calls
        self._making: dict[str, threading.Lock] = {}  # by the same name
        self._apart: list[str] = []  # such names of groups without some ranks of this one
        self._lock = threading.Lock()
        self._failed: BaseException | None = None  # the failure of the queues that have been given up

    @property
    def main(self) -> Queue:
        """The queue of the program's own calls."""
        if self._main is None:
            raise RuntimeError(f"the process group {self._name!r} has been destroyed")
        return self._main

    def current(self) -> Queue:
        """The queue for a call of this thread: the program's or, in a callback, the queue of calls of such callbacks.

        CollectiveError for a callback's call if a call of the program has failed. A rank that did not come to that call
        will not come to this one either, and the wait would end only after another timeout.
        """
        main, whose = self.main, Callbacks.running.get(threading.get_ident())
        if whose is None:
            return main
        main.engine.context.check()
        return self._others.get(whose.name) or self._new(main, whose)

    def _new(self, main: Queue, whose: Callbacks) -> Queue:
        """A queue for calls that callbacks make. All ranks make it together, with the first such call.

        Several may be made at a time, which wait for other ranks in different order.
        """
        group, key = self._exchange, self._key(main, whose)
        with self._lock:
            making = self._making.setdefault(whose.name, threading.Lock())
        with making:
            if whose.name not in self._others:
                name, store = f"{main.name}/{key}", dist.PrefixStore(f"queue/{key}", connection_to(group.store))
                engine = engine_for(Exchange(store, group.rank, group.size, self.timeout), name, self.timeout)
                self._others[whose.name] = Queue(name, engine)
            return self._others[whose.name]

    def _key(self, main: Queue, whose: Callbacks) -> str:
        """A key of a queue, the same on all ranks: the name of the group whose callbacks make the calls.

        If not all ranks are in that group, as in one of the ranks of a node, others know it by another name, or their
        callbacks are of another group. Then the key is its place among such groups, in the order of their first calls.
        """
        if main.callbacks.members <= whose.members:
            return whose.name
        with self._lock:
            if whose.name not in self._apart:
                self._apart.append(whose.name)
            return f"apart {self._apart.index(whose.name)}"

    def _all(self) -> list[Queue]:
        return [] if self._main is None else [self._main, *self._others.values()]

    @property
    def failure(self) -> BaseException | None:
        """The error of the first asynchronous call of a queue that failed, or None; also after the group has been
        destroyed."""
        failures = self._failed, *(queue.callbacks.failure for queue in self._all())
        return next((failure for failure in failures if failure is not None), None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls from now on."""
        self.timeout = timeout
        for queue in self._all():
            queue.engine.context.timeout = timeout.total_seconds()

    def finish(self) -> None:
        """Complete the calls that are under way, in queues where nothing has failed.

        The error of a call that fails is logged, and noted as the queue's failure: its group is about to be destroyed,
        and torch keeps groups whose ``shutdown`` raises.
        """
        for queue in self._all():
            context = queue.engine.context
            for operation in _core.queued(context):
                if context.broken is None:
                    self._complete(queue, operation)

    def _complete(self, queue: Queue, operation: _core.Operation) -> None:
        try:
            operation.complete()
        except Exception as e:
            queue.callbacks.failure = queue.callbacks.failure or e
            _log.error("while the process group %r was destroyed, a call under way failed: %s", self._name, e)

    def abort(self) -> None:
        """End the calls under way by an error."""
        for queue in self._all():
            queue.abort()

    def close(self) -> None:
        """Give up all queues and what they hold."""
        self._failed = self.failure
        for queue in self._all():
            queue.callbacks.close()
        self._main = None
        self._others.clear()
