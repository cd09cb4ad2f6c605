"""The ordered queues of a group's calls: one for calls of the program, others for calls of callbacks of futures.

A queue is called a lane in this module. It has nothing to do with the lanes of a hierarchy.
"""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist

from ..core import _core
from .engines import Engine, engine_for
from .store import Exchange
from .work import Callbacks, lateness

__all__ = ["Lane", "Lanes"]


class Lane:
    """An ordered queue of calls: an engine of its own, and the thread for the callbacks of its calls' futures."""

    def __init__(self, name: str, engine: Engine):
        self.name, self.engine = name, engine
        engine.context.lateness = lateness  # type: ignore[method-assign, assignment]
        self.callbacks = Callbacks(name)


class Lanes:
    """The lanes of one group. RuntimeError if one is needed after the group has been destroyed."""

    def __init__(self, name: str, engine: Engine, exchange: Exchange):
        """``exchange`` is the group's. Later lanes use its store and its timeout, too."""
        self._name, self._exchange, self.timeout = name, exchange, exchange.timeout
        self._main: Lane | None = Lane(name, engine)
        self._others: dict[str, Lane] = {}  # by whose callbacks make their calls
        self._lock = threading.Lock()

    @property
    def main(self) -> Lane:
        """The lane of the program's own calls."""
        if self._main is None:
            raise RuntimeError(f"the process group {self._name!r} has been destroyed")
        return self._main

    def current(self) -> Lane:
        """The lane for a call of this thread: the program's or, in a callback, the lane of calls of such callbacks.

        CollectiveError for a callback's call if a call of the program has failed. A rank that did not come to that call
        will not come to this one either, and the wait would end only after another timeout.
        """
        main, whose = self.main, Callbacks.running.get(threading.get_ident())
        if whose is None:
            return main
        main.engine.context.check()
        return self._others.get(whose) or self._new(main, whose)

    def _new(self, main: Lane, whose: str) -> Lane:
        """A lane for calls that callbacks make. All ranks make it together, with the first such call."""
        group = self._exchange
        with self._lock:
            name, store = f"{main.name}/{whose}", dist.PrefixStore(f"lane/{whose}", group.store)
            engine = engine_for(Exchange(store, group.rank, group.size, self.timeout), name, self.timeout)
            made = self._others[whose] = Lane(name, engine)
            return made

    def _all(self) -> list[Lane]:
        return [] if self._main is None else [self._main, *self._others.values()]

    @property
    def failure(self) -> BaseException | None:
        """The error of the first asynchronous call of a lane that failed, or None."""
        return next((lane.callbacks.failure for lane in self._all() if lane.callbacks.failure is not None), None)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls from now on."""
        self.timeout = timeout
        for lane in self._all():
            lane.engine.context.timeout = timeout.total_seconds()

    def finish(self) -> None:
        """Complete the calls that are under way, in lanes where nothing has failed."""
        for lane in self._all():
            if lane.engine.context.broken is None:
                for operation in _core.queued(lane.engine.context):
                    operation.complete()

    def close(self) -> None:
        """Give up all lanes and what they hold."""
        for lane in self._all():
            lane.callbacks.close()
        self._main = None
        self._others.clear()
