"""The progress of training on screen: a bar on a terminal, else a few lines."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

LINES = 10
MODES = ("auto", "bar", "lines")


def wants_bar(mode: str | None) -> bool:
    """Whether to draw a bar. Mode "auto" draws one if standard error is a terminal and tqdm is installed. None draws
    nothing.

    Raises ValueError for an unknown mode, ImportError for "bar" if tqdm is not installed.
    """
    if mode is not None and mode not in MODES:
        raise ValueError(f"unknown progress {mode!r}; there are {', '.join(MODES)}, and None")
    if mode in ("lines", None) or (mode == "auto" and not sys.stderr.isatty()):
        return False
    if importlib.util.find_spec("tqdm") is None:
        if mode == "bar":
            raise ImportError("the bar needs tqdm, which is not installed: pip install tqdm")
        return False
    return True


class Progress:
    """The progress of one run, on rank 0: a tqdm bar on standard error, or about ten lines on standard output."""

    def __init__(self, name: str, steps: int, start: int, epochs: int, *, bar: bool) -> None:
        self._name, self._epochs = name, epochs
        self._between = max(1, epochs // LINES)
        self._bar: Any = None
        if bar:
            from tqdm import tqdm

            self._bar = tqdm(total=steps, initial=start, desc=name, unit="step", dynamic_ncols=True)

    def step(self, steps: int = 1) -> None:
        """Count steps."""
        if self._bar is not None:
            self._bar.update(steps)

    def epoch(self, record: dict[str, Any]) -> None:
        """Show loss and accuracy of a finished epoch."""
        shown = {key: f"{record[key]:.4f}" for key in ("loss", "accuracy") if key in record}
        if self._bar is not None:
            self._bar.set_postfix(shown)
        elif record["epoch"] % self._between == 0 or record["epoch"] == self._epochs:
            values = "".join(f"  {key} {value}" for key, value in shown.items())
            width = len(str(self._epochs))
            epoch = f"{record['epoch']:{width}d}/{self._epochs}"
            print(f"{self._name:<10}  epoch {epoch}{values}  {record['seconds']:.1f} s", flush=True)

    def close(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
