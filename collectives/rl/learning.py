"""``Learner``: double Q-learning with a target network. ``Outliers``: losses that Gorila's learners do not use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .networks import Accept, Values, accept_all
from .replay import Sample
from .targets import double_q


class Learner:
    """Learns the network `values` by `opt`. `target` is another network, which gets its parameters now and then.

    ``updates`` counts the updates by the network's own count; the target network is renewed after every
    `target_every`. `clip`: the largest norm of a gradient (None: any). ``accept(loss)`` says whether a loss is used.
    """

    def __init__(
        self, values: Values, target: Values, opt: Any, *, target_every: int, clip: float | None = None,
        accept: Accept = accept_all,
    ) -> None:  # fmt: skip
        if target_every < 1:
            raise ValueError(f"target_every must be at least 1, not {target_every}")
        self.values, self.target, self.opt, self.accept = values, target, opt, accept
        self.updates, self.refused = 0, 0
        self._target_every, self._clip = target_every, clip
        self.renew_target()

    def renew_target(self) -> None:
        """Give the target network the parameters of the other one."""
        self.target.put(self.values.flat())

    def update(self, sample: Sample) -> NDArray[np.float32] | None:
        """Make one update; returns the absolute errors, which are the new priorities of the sample.

        FloatingPointError for a loss that is accepted and not finite; then no parameter has changed. None if one that
        is not finite was refused: the sample keeps its priorities.
        """
        given, weights = sample.transitions, sample.weights
        targets = double_q(given, self.values(given.next_observations), self.target(given.next_observations))
        self.opt.zero_grad()
        errors, accepted = self.values.backward(given.observations, given.actions, targets, weights, self._accepts)
        if accepted:
            if self._clip is not None:
                self.values.clip(self._clip)
            self.opt.step()
            self.updates += 1
            if self.updates % self._target_every == 0:
                self.renew_target()
        else:
            self.refused += 1
        sizes = np.abs(errors).astype(np.float32)
        return sizes if accepted or np.isfinite(sizes).all() else None

    def _accepts(self, loss: float) -> bool:
        accepted = self.accept(loss)
        if accepted and not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss of update {self.updates + 1} is {loss}: a reward is not finite, or the network has "
                "diverged; a smaller learning rate may help"
            )
        return accepted

    def state_dict(self) -> dict[str, Any]:
        """The counts, and the target network. Network and optimizer are saved by themselves."""
        return {"updates": self.updates, "refused": self.refused, "target": self.target.flat()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.updates, self.refused = int(state["updates"]), int(state["refused"])
        self.target.put(np.asarray(state["target"]))


class Outliers:
    """Refuses losses above the running mean plus `deviations` standard deviations (Nair et al. 2015, section 4.3).

    Mean and deviation are those of the losses so far, each of which counts `decay` times as much as the next one. The
    first `patience` losses are all accepted. The paper says "several" deviations. A loss that is not finite is refused,
    and is not counted.
    """

    def __init__(self, deviations: float = 4.0, *, decay: float = 0.99, patience: int = 100) -> None:
        if not deviations > 0:
            raise ValueError(f"deviations must be above 0, not {deviations}")
        if not 0 < decay < 1:
            raise ValueError(f"decay must be between 0 and 1, not {decay}")
        self._deviations, self._decay, self._patience = deviations, decay, patience
        self._weight = self._sum = self._squares = 0.0
        self._seen = 0

    def __call__(self, loss: float) -> bool:
        """Whether to use this loss. It is counted if it is finite."""
        if not math.isfinite(loss):
            return False
        accepted = self._seen < self._patience or loss <= self.limit
        self._seen += 1
        self._weight = self._decay * self._weight + 1
        self._sum = self._decay * self._sum + loss
        self._squares = self._decay * self._squares + loss * loss
        return accepted

    @property
    def limit(self) -> float:
        """The highest loss that is accepted."""
        mean = self._sum / self._weight
        return mean + self._deviations * max(0.0, self._squares / self._weight - mean * mean) ** 0.5

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"weight": self._weight, "sum": self._sum, "squares": self._squares, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self._weight, self._sum = float(state["weight"]), float(state["sum"])
        self._squares, self._seen = float(state["squares"]), int(state["seen"])
