"""``Prioritised`` and ``Uniform``: replays, and what is drawn from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..transitions import Form, Transitions
from .storage import Storage
from .sum_tree import Indices, SumTree

Numbers = NDArray[np.float32]


class Sample(NamedTuple):
    """What was drawn: the transitions, their importance weights, and where they lie (``places``, ``serials``)."""

    transitions: Transitions
    weights: Numbers
    places: Indices
    serials: Indices


class Replay(Protocol):
    """What both kinds of replay do."""

    storage: Storage

    def add(self, transitions: Transitions, priorities: Any = None) -> None:
        """Take transitions with their priorities (see `Prioritised`); a uniform replay has none."""

    def sample(self, count: int, rng: np.random.Generator, beta: float = 0.4) -> Sample:
        """Draw `count` transitions. ValueError from an empty replay."""

    def update(self, sample: Sample, priorities: Any) -> None:
        """Set the priorities of what was drawn; what others have taken the place of is left out."""

    def state_dict(self) -> dict[str, Any]:
        """All there is but the random numbers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. ValueError if it does not fit."""


class Uniform:
    """A replay whose transitions are all drawn equally often, independently of each other (Mnih et al. 2015)."""

    def __init__(self, capacity: int, form: Form) -> None:
        self.storage = Storage(capacity, form)

    def __len__(self) -> int:
        return len(self.storage)

    def add(self, transitions: Transitions, priorities: Any = None) -> None:
        """See `Replay.add`."""
        self.storage.add(transitions)

    def sample(self, count: int, rng: np.random.Generator, beta: float = 0.0) -> Sample:
        """See `Replay.sample`. All weights are 1."""
        if not len(self):
            raise ValueError("nothing can be drawn from an empty replay")
        places = rng.integers(len(self), size=count)
        return Sample(self.storage.take(places), np.ones(count, np.float32), places, self.storage.serials[places])

    def update(self, sample: Sample, priorities: Any) -> None:
        """See `Replay.update`: there is nothing to set."""

    def state_dict(self) -> dict[str, Any]:
        """See `Replay.state_dict`."""
        return self.storage.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Replay.load_state_dict`."""
        self.storage.load_state_dict(state)


class Prioritised:
    """A replay that draws a transition of priority p with a probability in proportion to p^alpha.

    This is the proportional variant of Schaul et al. 2016 (arXiv 1511.05952), section 3.3. A priority is the absolute
    error of a transition's value, plus `floor`, so that each can be drawn. `alpha`: 0.6 in that paper (section 3.3) and
    in Horgan et al. 2018.
    """

    def __init__(self, capacity: int, form: Form, *, alpha: float = 0.6, floor: float = 1e-6) -> None:
        if not 0 <= alpha < np.inf:
            raise ValueError(f"alpha must be finite and not negative, not {alpha}")
        if not 0 < floor < np.inf:
            raise ValueError(f"floor must be finite and above 0, not {floor}")
        self.storage = Storage(capacity, form)
        self.alpha, self.floor = alpha, floor
        self.highest = 1.0  # the highest priority so far
        self._tree = SumTree(capacity)

    def __len__(self) -> int:
        return len(self.storage)

    def add(self, transitions: Transitions, priorities: Any = None) -> None:
        """See `Replay.add`. Without `priorities` each gets the highest so far (Schaul et al., algorithm 1, line 6)."""
        given = np.full(transitions.rows, self.highest) if priorities is None else priorities
        masses = self._masses(given, transitions.rows)
        self._tree.set(self.storage.add(transitions), masses)

    def _masses(self, priorities: Any, count: int) -> NDArray[np.float64]:
        priorities = np.asarray(priorities, np.float64)
        if priorities.shape != (count,):
            raise ValueError(f"{count} transitions have {count} priorities, not {priorities.shape}")
        if not (np.isfinite(priorities).all() and (priorities >= 0).all()):
            raise ValueError("priorities are finite and not negative")
        self.highest = max(self.highest, float(priorities.max(initial=0.0)))
        return np.asarray((priorities + self.floor) ** self.alpha)

    def sample(self, count: int, rng: np.random.Generator, beta: float = 0.4) -> Sample:
        """Draw `count` transitions, one of each of `count` equal ranges of the priorities' sum (appendix B.2.1).

        Weights are ``(N P(i))^-beta``, divided by the largest of this sample (section 3.4).
        """
        if not len(self):
            raise ValueError("nothing can be drawn from an empty replay")
        total = self._tree.total
        sums = (np.arange(count) + rng.random(count)) * (total / count)
        places = self._tree.find(np.minimum(sums, total))
        weights = (len(self) * self._tree.get(places) / total) ** -beta
        weights /= weights.max(initial=0.0) or 1.0
        serials = self.storage.serials[places]
        return Sample(self.storage.take(places), weights.astype(np.float32), places, serials)

    def update(self, sample: Sample, priorities: Any) -> None:
        """See `Replay.update`. Of a transition that was drawn twice, the last priority counts."""
        masses = self._masses(priorities, len(sample.places))
        there = self.storage.serials[sample.places] == sample.serials
        self._tree.set(sample.places[there], masses[there])

    def masses(self) -> NDArray[np.float64]:
        """For each place, the number with which its transition is drawn in proportion; 0 if it is empty."""
        return self._tree.values()

    def state_dict(self) -> dict[str, Any]:
        """See `Replay.state_dict`."""
        return {**self.storage.state_dict(), "masses": self._tree.values(), "highest": self.highest}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Replay.load_state_dict`."""
        masses = np.asarray(state["masses"])
        if masses.shape != (self.storage.capacity,):
            raise ValueError(f"the state is of a replay for {masses.size}, this one is for {self.storage.capacity}")
        self.storage.load_state_dict(state)
        self._tree.set(np.arange(self.storage.capacity), masses)
        self.highest = float(state["highest"])
