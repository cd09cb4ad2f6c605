"""The ordered queues of a group's calls: one for calls of the program, others for calls of callbacks of futures."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist

from ..core import _core
from .engines import Engine, engine_for
from .store import Exchange
from .work import Callbacks, lateness

__all__ = ["Queue", "Queues"]


class Queue:
    """An ordered queue of calls: an engine of its own, and the thread for the callbacks of its calls' futures."""

    def __init__(self, name: str, engine: Engine):
        self.name, self.engine = name, engine
        engine.context.lateness = lateness  # type: ignore[method-assign, assignment]
        self.callbacks = Callbacks(name)


class Queues:
    """The queues of one group. RuntimeError if one is needed after the group has been destroyed."""

    def __init__(self, name: str, engine: Engine, exchange: Exchange):
        """``exchange`` is the group's. Later queues use its store and its timeout, too."""
        self._name, self._exchange, self.timeout = name, exchange, exchange.timeout
        self._main: Queue | None = Queue(name, engine)
        self._others: dict[str, Queue] = {}  # by whose callbacks make their calls
        self._lock = threading.Lock()

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
        return self._others.get(whose) or self._new(main, whose)

    def _new(self, main: Queue, whose: str) -> Queue:
        """A queue for calls that callbacks make. All ranks make it together, with the first such call."""
        group = self._exchange
        with self._lock:
            name, store = f"{main.name}/{whose}", dist.PrefixStore(f"queue/{whose}", group.store)
            engine = engine_for(Exchange(store, group.rank, group.size, self.timeout), name, self.timeout)
            made = self._others[whose] = Queue(name, engine)
            return made

    def _all(self) -> list[Queue]:
        return [] if self._main is None else [self._main, *self._others.values()]

    @property
    def failure(self) -> BaseException | None:
        """The error of the first asynchronous call of a queue that failed, or None."""
        return next((queue.callbacks.failure for queue in self._all() if queue.callbacks.failure is not None), None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls from now on."""
        self.timeout = timeout
        for queue in self._all():
            queue.engine.context.timeout = timeout.total_seconds()

    def finish(self) -> None:
        """Complete the calls that are under way, in queues where nothing has failed."""
        for queue in self._all():
            if queue.engine.context.broken is None:
                for operation in _core.queued(queue.engine.context):
                    operation.complete()

    def close(self) -> None:
        """Give up all queues and what they hold."""
        for queue in self._all():
            queue.callbacks.close()
        self._main = None
        self._others.clear()
