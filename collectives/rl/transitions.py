"""``Transitions``: steps of an environment, of which values are learnt, and how an episode becomes such steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Transitions(NamedTuple):
    """Transitions of several steps, one in each row of the arrays.

    In ``observations`` the ``actions`` were taken, which led to ``next_observations``. ``rewards`` are the discounted
    sums on the way. The value of the next observation counts with the factor ``discounts``: gamma^n after n steps, 0 if
    the episode ended there by itself.
    """

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    discounts: Array

    @property
    def rows(self) -> int:
        """The number of transitions."""
        return len(self.actions)


class Form(NamedTuple):
    """The shape and the type of an observation, which those of all arrays of `Transitions` follow from."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def stacked(self) -> bool:
        """Whether an observation is a stack of frames, (frames, h, w), which others have some of, too."""
        return len(self.shape) == 3

    @property
    def pixels(self) -> bool:
        """Whether the numbers of an observation are pixels of 8 bits, from 0 to 255."""
        return bool(np.dtype(self.dtype) == np.uint8)

    def frames(self, transitions: Transitions) -> Array:
        """All frames of stacked observations, (frames, h, w): those of the observations before the next ones."""
        both = np.concatenate([transitions.observations, transitions.next_observations])
        return both.reshape(-1, *self.shape[1:])

    def empty(self, count: int) -> Transitions:
        """Transitions of unknown content."""
        each = [(self.shape, self.dtype), ((), "i4"), ((), "f4"), (self.shape, self.dtype), ((), "f4")]
        return Transitions(*(np.empty((count, *shape), dtype) for shape, dtype in each))

    def joined(self, rows: Sequence[tuple[Any, ...]]) -> Transitions:
        """Transitions of rows of five values each."""
        made = self.empty(len(rows))
        for array, column in zip(made, zip(*rows, strict=True), strict=False):
            array[...] = column
        return made

    @property
    def nbytes(self) -> int:
        """The bytes of one transition."""
        return sum(array.nbytes for array in self.empty(1))


class NStep:
    """Turns the steps of one environment into transitions over `n` steps with the discount `gamma`.

    At the end of an episode, steps that have fewer than n after them become shorter transitions. An episode that is cut
    off (truncated) has not ended: its last observation has a value.
    """

    def __init__(self, n: int, gamma: float) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], not {gamma}")
        self.n, self.gamma = n, gamma
        self._steps: deque[tuple[Any, int, float]] = deque()

    def push(
        self, observation: Any, action: int, reward: float, after: Any, terminated: bool, truncated: bool
    ) -> list[tuple[Any, int, float, Any, float]]:
        """The transitions that this step completes: none, one, or at the end of an episode up to n."""
        self._steps.append((observation, int(action), float(reward)))
        if terminated or truncated:
            return list(self._rest(after, 0.0 if terminated else 1.0))
        return [self._first(after, 1.0)] if len(self._steps) == self.n else []

    def cut(self, after: Any) -> list[tuple[Any, int, float, Any, float]]:
        """The transitions that are left when an episode is given up at the observation `after`."""
        return list(self._rest(after, 1.0))

    def _rest(self, after: Any, bootstrap: float) -> Iterator[tuple[Any, int, float, Any, float]]:
        while self._steps:
            yield self._first(after, bootstrap)

    def _first(self, after: Any, bootstrap: float) -> tuple[Any, int, float, Any, float]:
        total, factor = 0.0, 1.0
        for _, _, reward in self._steps:
            total += factor * reward
            factor *= self.gamma
        observation, action, _ = self._steps.popleft()
        return observation, action, total, after, bootstrap * factor
