"""The best epoch so far by a metric, and when to give up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..loading import fields

MODES = ("max", "min")


class Improvement:
    """Keeps the best value of a metric, and counts the epochs since.

    `best` is (metric, mode), mode "max" or "min"; with None nothing is judged. `patience` is a number of epochs; with
    None a run never gives up. ValueError for other modes, and for a `patience` below 1 or without `best`.
    """

    def __init__(self, best: tuple[str, str] | None, patience: int | None) -> None:
        if best is not None and (len(best) != 2 or best[1] not in MODES):
            raise ValueError(f"best is (metric, 'max') or (metric, 'min'), not {best!r}")
        if patience is not None and (best is None or patience < 1):
            raise ValueError(f"patience is a number of epochs, at least 1, and needs best; patience={patience!r}")
        self._metric: str | None = None
        self._mode = "max"
        if best is not None:
            self._metric, self._mode = best
        self._of = self._metric, self._mode  # of what `best` is; a run that judges nothing keeps that of another one
        self._patience = patience
        self.best: dict[str, Any] | None = None
        self.checkpoint: int | None = None  # the step of the checkpoint that has the best
        self._since = 0  # epochs without a new best

    def judge(self, record: Mapping[str, Any]) -> float | None:
        """The metric's value in the record of an epoch if it is the best so far, else None.

        A value that is not a number is not better than any. ValueError if the record lacks the metric.
        """
        if self._metric is None:
            return None
        if self._metric not in record:
            raise ValueError(f"best: the records have no {self._metric!r}; they have {', '.join(sorted(record))}")
        value = float(record[self._metric])
        sign = 1 if self._mode == "max" else -1
        better = not math.isnan(value) and (self.best is None or sign * value > sign * self.best["value"])
        return value if better else None

    def note(self, better: float | None, step: int) -> None:
        """Take what rank 0 has judged of the epoch that ended with `step`."""
        self._since += 1
        if better is not None:
            self.best, self._since, self.checkpoint = {"value": better, "step": step}, 0, step

    @property
    def exhausted(self) -> bool:
        """Whether there was no new best for as many epochs as `patience` says."""
        return self._patience is not None and self._since >= self._patience

    def state_dict(self) -> dict[str, Any]:
        """The best value, of which metric it is, and the epochs since."""
        metric, mode = self._of
        return {
            "best": self.best, "since": self._since, "checkpoint": self.checkpoint, "metric": metric, "mode": mode,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state that `state_dict` returned; values of another metric are nothing to go by."""
        best, since = fields("Improvement", state, best=lambda best: best, since=int)
        of = state.get("metric", self._metric), state.get("mode", self._mode)
        if self._metric is not None and of != self._of:
            return
        self.best, self._since, self._of = best, since, of
        self.checkpoint = state.get("checkpoint", None if best is None else best["step"])
