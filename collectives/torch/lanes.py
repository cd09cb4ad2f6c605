"""The orders in which a group's calls are made: that of the program, and those of callbacks of futures."""

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
    """An order of calls: an engine of its own, and where the callbacks of its calls' futures run."""

    def __init__(self, name: str, engine: Engine):
        self.name, self.engine = name, engine
        engine.context.lateness = lateness  # type: ignore[method-assign, assignment]
        self.callbacks = Callbacks(name)


class Lanes:
    """The lanes of one group; RuntimeError for what needs one when the group has been destroyed."""

    def __init__(self, name: str, engine: Engine, exchange: Exchange):
        """``exchange`` is the group's, whose store and timeout those of later lanes have, too."""
        self._name, self._exchange, self.timeout = name, exchange, exchange.timeout
        self._main: Lane | None = Lane(name, engine)
        self._others: dict[str, Lane] = {}  # by whose callbacks make their calls
        self._lock = threading.Lock()

    @property
    def main(self) -> Lane:
        """That of the program."""
        if self._main is None:
            raise RuntimeError(f"the process group {self._name!r} has been destroyed")
        return self._main

    def current(self) -> Lane:
        """Where a call of this thread goes: to the program's, or to that of the callbacks it is one of.

        CollectiveError for a callback's call where one of the program's has failed: a rank that did not come to that
        one will not come to this one, which would take a timeout more to say so.
        """
        main, whose = self.main, Callbacks.running.get(threading.get_ident())
        if whose is None:
            return main
        main.engine.context.check()
        return self._others.get(whose) or self._new(main, whose)

    def _new(self, main: Lane, whose: str) -> Lane:
        """A lane for calls from callbacks of a group's futures; made by all ranks together, as those calls are."""
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
        """What ended an asynchronous call early, the first one of its lane."""
        return next((lane.callbacks.failure for lane in self._all() if lane.callbacks.failure is not None), None)

    def set_timeout(self, timeout: timedelta) -> None:
        """How long calls may take from now on."""
        self.timeout = timeout
        for lane in self._all():
            lane.engine.context.timeout = timeout.total_seconds()

    def finish(self) -> None:
        """Complete what is under way, where nothing has failed."""
        for lane in self._all():
            if lane.engine.context.broken is None:
                for operation in _core.queued(lane.engine.context):
                    operation.complete()

    def close(self) -> None:
        """Give up all lanes."""
        for lane in self._all():
            lane.callbacks.close()
        self._main = None
        self._others.clear()
