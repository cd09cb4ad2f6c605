"""``DQN``: one process plays, keeps what it saw, and learns from it (Mnih et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .. import train
from .acting import Actor
from .exploration import annealed
from .learning import Learner
from .memory import Memory
from .settings import Settings
from .tasks import Task

T = TypeVar("T")


class DQN:
    """Double DQN with a replay, in one process. It is a `Player`. ValueError if the replay has too little room."""

    comm: Any = None
    everyone: Any = None
    trains = True
    counted_from = 0

    def __init__(self, task: Task, settings: Settings, seed: int) -> None:
        settings.check_room(1, 1)
        network, optimizer = settings.makers(task, seed)
        self.values = network()
        self.learner = Learner(
            self.values,
            network(),
            optimizer(self.values),
            target_every=settings.target_every,
            clip=settings.clip,
        )
        epsilon = annealed(settings.epsilon_first, settings.epsilon_last, settings.epsilon_steps)
        self.actor = Actor(task, self.values, train.Random(seed, "actor", 0), settings.n, settings.gamma, epsilon)
        self.memory = Memory(task, settings, seed, 0)
        self.steps = self.updates = 0

    def advance(self, until: int) -> None:
        """See `Player.advance`. The episode that is under way at the end is given up."""
        while self.actor.steps < until:
            self.memory.add(self.actor.play(1), None, 1)
            while self.memory.due:
                self.memory.update(self.learner.update(self.memory.draw()))
        self.memory.add(self.actor.give_up(), None, 0)
        self._count()

    def _count(self) -> None:
        self.steps, self.updates = self.actor.steps, self.learner.updates

    def together(self, work: Callable[[Any], T]) -> T:
        """See `Player.together`."""
        return work(None)

    def close(self) -> None:
        """Use the environment no more."""
        self.actor.close()

    def traffic(self) -> dict[str, int]:
        """The bytes of messages by path: there are none."""
        return {}

    def counts(self) -> dict[str, Any]:
        """See `Player.counts`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that a run goes on from."""
        return {
            "net": self.values.net.state_dict(),
            "opt": self.learner.opt.state_dict(),
            "learner": self.learner.state_dict(),
            "actor": self.actor.state_dict(),
            "memory": self.memory.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.values.net.load_state_dict(state["net"])
        self.learner.opt.load_state_dict(state["opt"])
        self.learner.load_state_dict(state["learner"])
        self.actor.load_state_dict(state["actor"])
        self.memory.load_state_dict(state["memory"])
        self._count()
