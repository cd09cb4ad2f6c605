"""What rank 0 does with every record: files for other programs, and pictures."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ...drawing import require_matplotlib
from ...files import replacing
from .plot import draw_curves
from .records import FORMAT

Record = dict[str, Any]


class Callback:
    """Gets every record of a run, on rank 0. An OSError or ValueError that a method raises ends the run on all ranks.

    The methods here do nothing; a callback overrides those it needs.
    """

    def begin(self, records: Sequence[Record]) -> None:
        """Steps begin. `records` are those of the steps before, if the run goes on from a checkpoint."""

    def record(self, record: Record) -> None:
        """There is a new record. If an epoch has ended, it has the evaluation."""

    def close(self) -> None:
        """Steps have ended, also by an error."""


class JSONL(Callback):
    """One line of JSON for each record, in the file `path`, written at once.

    A run that goes on from a checkpoint writes the file anew up to there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def begin(self, records: Sequence[Record]) -> None:
        """Write the file with the records so far. OSError if it cannot be written."""
        with replacing(self.path) as file:
            file.writelines(json.dumps(record) + "\n" for record in records)
        self._file = open(self.path, "a", encoding="utf-8")

    def record(self, record: Record) -> None:
        """Add a line. OSError if it cannot be written."""
        assert self._file is not None
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoard(Callback):
    """The numbers of each record by step, for TensorBoard, in the folder `folder`.

    It is written by ``torch.utils.tensorboard`` or tensorboardX, whichever is installed; ImportError if neither is.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._make = _summary_writer()
        self._writer: Any = None

    def begin(self, records: Sequence[Record]) -> None:
        """Open a file. What an earlier process wrote of later steps is no longer shown."""
        self._writer = self._make(str(self.folder), purge_step=records[-1]["step"] + 1 if records else 0)

    def record(self, record: Record) -> None:
        """Write the numbers of a record."""
        for key, value in record.items():
            if key != "step":
                self._writer.add_scalar(key, value, record["step"])

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _summary_writer() -> Any:
    """The class SummaryWriter of a package that is installed."""
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(name).SummaryWriter
        except ImportError:
            continue
    raise ImportError("TensorBoard needs tensorboardX, or torch and tensorboard: pip install tensorboardX")


class Picture(Callback):
    """The curves of the run in the picture `path` (.png, .svg, .pdf), at its end and while it runs (see `draw_curves`).

    `seconds` is the least time between two pictures. ImportError if matplotlib is not installed.
    """

    def __init__(self, path: str | Path, title: str = "", seconds: float = 60.0) -> None:
        require_matplotlib()
        self.path, self.title, self.seconds = Path(path), title, seconds
        self._records: list[Record] = []
        self._drawn = 0.0

    def begin(self, records: Sequence[Record]) -> None:
        """Take the records so far."""
        self._records = list(records)
        self._drawn = time.monotonic()

    def record(self, record: Record) -> None:
        """Take a record, and draw if the last picture is old."""
        self._records.append(record)
        if time.monotonic() - self._drawn >= self.seconds:
            self._draw()

    def close(self) -> None:
        """Draw all records."""
        if self._records:
            self._draw()

    def _draw(self) -> None:
        runs = {"run": {"settings": {"label": self.title or "run"}, "records": self._records}}
        draw_curves({"format": FORMAT, "runs": runs}, self.path, self.title)
        self._drawn = time.monotonic()
