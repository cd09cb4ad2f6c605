"""Strategies that train apart for some steps, and merge then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..counts import count
from ..loading import fields
from .base import with_parameters
from .finite import bad_parameter, refuse_parameters
from .local import Local, average
from .pattern import PARAMETERS, Pattern, together


class Rounds(Local):
    """Rounds of `every` steps apart, each of which ends with `merge`.

    With `weighted` (default: True) a rank counts in the mean by its samples of the round, else all ranks count alike.
    ``round`` counts the rounds. `finish` ends a round that is not complete. Raises ValueError for `every` below 1.
    """

    on_device = True

    def __init__(self, every: int, weighted: bool = True) -> None:
        super().__init__()
        self.every, self.weighted = count("every", every), weighted
        self.round = 0
        self.apart = 0  # steps of this round
        self.seen = 0  # samples of this rank in this round

    def after_step(self) -> None:
        """Count the step, and merge after the last one of a round."""
        super().after_step()
        self.apart += 1
        self.seen += self.samples
        if self.due():
            self._end_round()

    def due(self) -> bool:
        """Whether the round ends with the step that was counted last."""
        return self.apart >= self.every

    def finish(self) -> None:
        """End the round under way."""
        if self.apart:
            self._end_round()

    @with_parameters
    def _end_round(self) -> None:
        self.merge(self._share())
        self.round += 1
        self.apart = self.seen = 0

    def _share(self) -> float:
        """The weight of this rank in the mean; those of all ranks add up to their number. Collective.

        FloatingPointError on all ranks if a rank's parameters are not finite.
        """
        from mpi4py import MPI

        bad = bad_parameter(self.buckets.list) is not None
        total = np.array([float(self.seen), float(bad)])
        self.comm.Allreduce(MPI.IN_PLACE, total, op=MPI.SUM)
        if total[1]:
            refuse_parameters(self.buckets.list, self.comm)
        return float(self.seen * self.comm.size / total[0]) if self.weighted and total[0] else 1.0

    def merge(self, share: float) -> None:
        """Replace the parameters by the ranks' mean, in which this rank has the weight `share`. Collective."""
        average(self.comm, self.parameters, share)

    def pattern(self, size: int) -> Pattern:
        """An all-reduce of the parameters after each round."""
        return together(PARAMETERS, lambda step: (step + 1) % self.every == 0)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "every": self.every, "weighted": self.weighted}

    def state_dict(self) -> dict[str, Any]:
        """The counters; the samples are this rank's own."""
        return {**super().state_dict(), "round": self.round, "apart": self.apart, "seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        counters = fields(type(self).__name__, state, round=int, apart=int, seen=int)
        super().load_state_dict(state)
        self.round, self.apart, self.seen = counters
