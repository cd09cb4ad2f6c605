"""``Memory``: a replay, its random numbers, and the pace that it sets. There is no communication here."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from .. import train
from .replay import Sample
from .settings import Settings
from .tasks import Task
from .transitions import Transitions


class Memory:
    """Part `number` of `parts` replays, which have ``Settings.capacity`` together.

    It holds `actors` actors and a learner to a pace of ``Settings.ratio`` environment steps for each batch, once it has
    its part of ``Settings.start`` transitions: a rate limiter, as in Cassirer et al. 2021 (arXiv 2102.04736). Actors
    may be ahead by two chunks each, and by more while `idle`. ``steps`` counts the environment steps, ``batches`` what
    was drawn.
    """

    def __init__(self, task: Task, settings: Settings, seed: int, number: int, parts: int = 1, actors: int = 1) -> None:
        self.replay = settings.replay(task, parts)
        self.steps = self.batches = self._recorded = 0
        self._settings, self._number, self._parts = settings, number, parts
        self._start = -(-settings.start // parts)
        self._ahead = 2 * settings.chunk * actors
        self._random = train.Random(seed, "replay", number)
        self._drawn: deque[Sample] = deque()  # samples whose priorities are to come

    def recall(self, transitions: Transitions) -> None:
        """Take this part's share of recorded transitions; they count for ``start``. ValueError for another form."""
        share = Transitions(
            *(array[self._number :: self._parts][: self.replay.storage.capacity] for array in transitions)
        )
        self.replay.add(share)
        self._recorded += share.rows

    def add(self, transitions: Transitions, priorities: Any, steps: int) -> None:
        """Take transitions, for which an actor has taken so many steps."""
        if transitions.rows:
            self.replay.add(transitions, priorities)
        self.steps += steps

    @property
    def _learnt_from(self) -> int:
        """The steps since learning could begin."""
        return self.steps - max(0, self._start - self._recorded)

    @property
    def due(self) -> int:
        """How many batches may be drawn now."""
        if self.replay.storage.added < self._start:
            return 0
        return max(0, int(self._learnt_from // self._settings.ratio) - self.batches)

    @property
    def idle(self) -> bool:
        """Whether nothing can go on without more steps: no batch is due, and none waits for its priorities."""
        return not (self._drawn or self.due)

    @property
    def actors_may_go_on(self) -> bool:
        """Whether an actor whose transitions were taken may send more."""
        return self.idle or self._learnt_from <= self._settings.ratio * self.batches + self._ahead

    @property
    def waiting(self) -> int:
        """The number of batches whose priorities are to come."""
        return len(self._drawn)

    def draw(self) -> Sample:
        """Draw the next batch."""
        self.batches += 1
        self._drawn.append(self.replay.sample(self._settings.batch, self._random.generator, self._settings.beta))
        return self._drawn[-1]

    def update(self, priorities: Any) -> None:
        """Set the priorities of the oldest batch that has none. With None it keeps those with which it was drawn."""
        sample = self._drawn.popleft()
        if priorities is not None:
            self.replay.update(sample, priorities)

    def state_dict(self) -> dict[str, Any]:
        """The state when no batch waits for its priorities."""
        counts = {"steps": self.steps, "batches": self.batches, "recorded": self._recorded}
        return {**counts, "replay": self.replay.state_dict(), "random": self._random.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.steps, self.batches, self._recorded = (int(state[key]) for key in ("steps", "batches", "recorded"))
        self.replay.load_state_dict(state["replay"])
        self._random.load_state_dict(state["random"])
        self._drawn.clear()
