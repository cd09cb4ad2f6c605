"""What rank 0 tells of a run: its progress on screen, its log file, its records to callbacks."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ...files import made_folder
from ..agree import on_rank_0
from ..data.loader import Loader
from .callbacks import Callback, Record
from .progress import Progress, wants_bar
from .records import write_log


class Reports:
    """Progress, log and callbacks of the run `name`. Methods are collective unless they say otherwise.

    `out`: the folder of the log file, None for none. `settings` are kept in it. `callbacks`: rank 0's are called.
    `mode`: how progress is shown, see `wants_bar`; None: not at all. All ranks raise OSError, ValueError and
    ImportError of rank 0.
    """

    def __init__(
        self, comm: Any, name: str, out: str | Path | None, *, settings: dict[str, Any], callbacks: Sequence[Callback],
        mode: str | None,
    ) -> None:  # fmt: skip
        self._comm, self._name, self._settings = comm, name, settings
        self._log = None if out is None else Path(out) / "log.json"
        self._callbacks = list(callbacks)
        self._called = False  # whether rank 0 has callbacks
        self._progress: Progress | None = None
        self._shown, self._bar = mode is not None, on_rank_0(comm, lambda: wants_bar(mode))

    def prepare(self) -> None:
        """Make the folder of the log. OSError if it cannot be written to, TypeError if it cannot have the settings."""
        if self._log is not None:
            folder = self._log.parent

            def ready() -> None:
                json.dumps(self._settings)
                made_folder(folder)

            on_rank_0(self._comm, ready)

    @contextlib.contextmanager
    def during(self, comm: Any, records: Sequence[Record], data: Loader, epochs: int) -> Iterator[None]:
        """While steps run on the ranks of `comm`: callbacks are open, and progress is shown.

        It begins at the position of `data`. `records` are those so far.
        """
        self._comm, self._called = comm, on_rank_0(comm, lambda: bool(self._callbacks))
        if comm.rank == 0 and self._shown:
            total, done = epochs * len(data), data.epoch * len(data) + data.step
            self._progress = Progress(self._name, total, done, epochs, bar=self._bar)
        try:
            self._call(lambda callback: callback.begin(records))
            yield
            self._call(lambda callback: callback.close())
        except BaseException:
            self._close()
            raise
        finally:
            if self._progress is not None:
                self._progress.close()
            self._progress = None

    def _close(self) -> None:
        """Close the callbacks after an error or a ``break``, maybe not on all ranks. Not collective."""
        for callback in self._callbacks if self._comm.rank == 0 else []:
            with contextlib.suppress(OSError, ValueError):  # there is an error already
                callback.close()

    def _call(self, method: Callable[[Callback], None]) -> None:
        """Call a method of all callbacks, on rank 0."""

        def call() -> None:
            for callback in self._callbacks:
                method(callback)

        if self._called:
            on_rank_0(self._comm, call)

    def step(self, steps: int = 1) -> None:
        """Count steps. Not collective."""
        if self._progress is not None:
            self._progress.step(steps)

    def record(self, record: Record) -> None:
        """Tell of a record within an epoch."""
        self._call(lambda callback: callback.record(record))

    def epoch(self, records: Sequence[Record]) -> None:
        """Tell of the last one of `records`, that of an epoch, and write the log."""

        def tell() -> None:
            if self._log is not None:
                run = {"ranks": self._comm.size, "settings": self._settings, "records": records}
                write_log(self._log, self._name, run)
            for callback in self._callbacks:
                callback.record(records[-1])

        on_rank_0(self._comm, tell)
        if self._progress is not None:
            self._progress.epoch(records[-1])
