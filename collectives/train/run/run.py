"""``Run``: the steps of one training, its records and its log file."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...files import replacing
from ..agree import communicator, on_rank_0
from ..data.loader import Loader
from .progress import Progress, wants_bar

FORMAT = 1


class Run:
    """Runs a training loop on all ranks, and records the values that it logs. Collective.

    * `out`: folder for ``log.json``, made if it does not exist. None (default): no file.
    * `comm`: the communicator (default: the world).
    * `state`: the objects of the run by name, each with ``state_dict`` and ``load_state_dict``. If "opt" is among them
      and was distributed, ``finish`` of its strategy is called when training ends.
    * `name`: the run's name in the log. Runs of different names may share a folder.
    * `evaluate`: a collective function without arguments, called after each epoch. Its dict of numbers goes into the
      record of that epoch.
    * `every`: steps between records (default 50). There is a record after each epoch, too. For a record, the logged
      values are averaged over the ranks.
    * `settings`: a dict that is kept in the log as it is.
    * `progress`: "bar", "lines", or "auto" (default): a bar on a terminal.

    ``records`` is the list of records so far, the same on all ranks except for "seconds". A record is a dict with
    "epoch" (completed epochs), "step", "samples" (of all ranks), "seconds" (since the first step), "lr", the logged
    means and, after an epoch, the evaluation. Raises ValueError for bad arguments, ImportError for "bar" without tqdm,
    and OSError on all ranks if rank 0 cannot write to `out`.
    """

    def __init__(
        self,
        out: str | Path | None = None,
        *,
        comm: Any = None,
        state: dict[str, Any] | None = None,
        name: str = "train",
        evaluate: Callable[[], dict[str, float]] | None = None,
        every: int = 50,
        settings: dict[str, Any] | None = None,
        progress: str = "auto",
    ) -> None:
        self.comm = communicator(comm)
        self.state = dict(state or {})
        for key, thing in self.state.items():
            if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
                raise ValueError(f"state[{key!r}] has no state_dict and load_state_dict")
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self.name, self.every, self.settings = name, every, dict(settings or {})
        self._evaluate = evaluate
        self._bar = on_rank_0(self.comm, lambda: wants_bar(progress))
        self._log = None if out is None else Path(out) / "log.json"
        if self._log is not None:
            on_rank_0(self.comm, self._make_folder)
        self.records: list[dict[str, Any]] = []
        self.step = 0
        self.samples = 0
        self._batch = 0  # samples of this rank's current batch
        self._begin = 0.0
        self._recorded = 0  # step of the last record
        self._since = 0  # samples of this rank since the last record
        self._sums: dict[str, list[float]] = {}  # name: [sum of value * samples, samples]

    def _make_folder(self) -> None:
        assert self._log is not None
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(self._log.parent, os.W_OK):
            raise PermissionError(f"cannot write to {self._log.parent}")

    def steps(self, data: Loader, epochs: int) -> Iterator[tuple[Any, ...]]:
        """Yield this rank's batches of `data`, from the position of `data` until the end of epoch `epochs`. Collective.

        After each epoch the network is evaluated and the log written; after the last one, ``finish`` of the strategy
        comes before that. Raises ValueError unless `epochs` is at least 1, FloatingPointError on all ranks if the mean
        of a logged value is not finite.
        """
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        total, done = epochs * len(data), data.epoch * len(data) + data.step
        progress = Progress(self.name, total, done, epochs, bar=self._bar) if self.comm.rank == 0 else None
        self._begin = time.perf_counter()
        try:
            while data.epoch < epochs:
                for batch in data:
                    self._batch = len(batch[0])
                    yield batch
                    self.step += 1
                    self._since += self._batch
                    if progress is not None:
                        progress.step()
                    if self.step - self._recorded >= self.every and data.step < len(data):
                        self._record(data.epoch)
                self._end_epoch(data.epoch, last=data.epoch == epochs)
                if progress is not None:
                    progress.epoch(self.records[-1])
        finally:
            if progress is not None:
                progress.close()

    def log(self, **values: Any) -> None:
        """Note values of this step: numbers, or objects that ``float`` takes.

        Each value is a mean over this rank's samples of the step. All ranks must log the same names. A record has the
        means over all samples of all ranks since the record before.
        """
        for key, value in values.items():
            total = self._sums.setdefault(key, [0.0, 0.0])
            if self._batch:
                total[0] += float(value) * self._batch
                total[1] += self._batch

    def _record(self, epoch: int) -> dict[str, Any]:
        """Make a record: the means, over all ranks, of the values logged since the last one. Collective."""
        from mpi4py import MPI

        keys = sorted(self._sums)
        vector = np.array([float(self._since), *(x for key in keys for x in self._sums[key])])
        self.comm.Allreduce(MPI.IN_PLACE, vector, op=MPI.SUM)
        self._sums.clear()
        self._recorded, self._since = self.step, 0
        self.samples += int(vector[0])
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": self.step,
            "samples": self.samples,
            "seconds": round(time.perf_counter() - self._begin, 6),
        }
        if hasattr(self.state.get("opt"), "lr"):
            record["lr"] = self.state["opt"].lr
        for key, total, count in zip(keys, vector[1::2], vector[2::2], strict=True):
            record[key] = float(total / count) if count else math.nan
            if not math.isfinite(record[key]):
                raise FloatingPointError(
                    f"{self.name}: {key} is {record[key]} at step {self.step}; a smaller learning rate may help"
                )
        self.records.append(record)
        return record

    def _end_epoch(self, epoch: int, last: bool) -> None:
        record = self._record(epoch)
        strategy = getattr(self.state.get("opt"), "strategy", None)
        if last and strategy is not None:
            strategy.finish()
        if self._evaluate is not None:
            record.update(self._evaluate())
        if self._log is not None:
            on_rank_0(self.comm, self._write)

    def _write(self) -> None:
        """Write this run into the log beside the runs of other names. A reader never sees an incomplete file."""
        assert self._log is not None
        log: dict[str, Any] = read_log(self._log) if self._log.exists() else {"format": FORMAT, "runs": {}}
        log["runs"][self.name] = {"ranks": self.comm.size, "settings": self.settings, "records": self.records}
        with replacing(self._log) as file:
            file.write(json.dumps(log, indent=1) + "\n")


def read_log(path: str | Path) -> dict[str, Any]:
    """The contents of a ``log.json``: ``{"format": 1, "runs": {name: {"ranks", "settings", "records"}}}``.

    Raises OSError for a file that cannot be read, ValueError for a file that is no such log.
    """
    try:
        log = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(log, dict) or log.get("format") != FORMAT or not isinstance(log.get("runs"), dict):
        raise ValueError(f"{path} is not a training log of format {FORMAT}")
    return log
