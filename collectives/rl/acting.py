"""``Actor``: plays an environment, and makes transitions of it. ``evaluate``: how well a network plays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import train
from .networks import Values
from .targets import double_q
from .tasks import Task
from .transitions import NStep, Transitions


class Place:
    """An environment of `task` in which an actor plays, and the steps that are no transitions yet.

    ``observation`` is None when an episode is to begin. It is a copy, since an environment may use its array again.
    """

    def __init__(self, task: Task, n: int, gamma: float) -> None:
        self.observation: Any = None
        self.env = task.make()
        self._learnt, self._assembler, self._return = task.learnt, NStep(n, gamma), 0.0

    def begin(self, seed: int) -> None:
        """Begin an episode."""
        observation, _ = self.env.reset(seed=seed)
        self.observation = np.array(observation)
        self._return = 0.0

    def step(self, action: int) -> tuple[list[Any], float | None]:
        """Take an action; returns the transitions that are complete, and the return if the episode has ended."""
        before = self.observation
        seen, reward, terminated, truncated, _ = self.env.step(action)
        after = np.array(seen)
        self._return += float(reward)
        ended = bool(terminated or truncated)
        self.observation = None if ended else after
        rows = self._assembler.push(before, action, self._learnt(float(reward)), after, terminated, truncated)
        return rows, self._return if ended else None

    def give_up(self) -> list[Any]:
        """Leave the episode; returns the transitions that are left of it."""
        rows = [] if self.observation is None else self._assembler.cut(self.observation)
        self.observation = None
        return rows


class Actor:
    """Plays `task` by the values of a network; with a probability of ``epsilon(steps)`` an action is random.

    With several functions `epsilons` it plays in as many environments in turn, and asks the network for all of them at
    once. ``steps`` counts the steps in all of them, ``returns`` has the returns of the episodes that have ended. All
    randomness, that of the environments too, comes from `random`.
    """

    def __init__(
        self, task: Task, values: Values, random: train.Random, n: int, gamma: float, *epsilons: Callable[[int], float]
    ) -> None:
        self.values, self.epsilons, self.steps = values, epsilons, 0
        self.returns: list[float] = []
        self._task, self._random = task, random
        self._places = [Place(task, n, gamma) for _ in epsilons]

    def play(self, steps: int) -> Transitions:
        """Take so many steps, a multiple of the number of environments; returns the transitions that they complete."""
        rows: list[Any] = []
        for _ in range(steps // len(self._places)):
            for place, action in zip(self._places, self._actions(), strict=True):
                made, total = place.step(action)
                rows += made
                if total is not None:
                    self.returns.append(total)
            self.steps += len(self._places)
        return self._task.form.joined(rows)

    def _actions(self) -> list[int]:
        """An action for each environment, in which an episode begins if the last one has ended."""
        generator, actions = self._random.generator, np.full(len(self._places), -1)
        for i, (place, epsilon) in enumerate(zip(self._places, self.epsilons, strict=True)):
            if place.observation is None:
                place.begin(int(generator.integers(2**31)))
            if generator.random() < epsilon(self.steps):
                actions[i] = generator.integers(self._task.actions)
        greedy = np.flatnonzero(actions < 0)
        if len(greedy):
            seen = np.stack([self._places[i].observation for i in greedy])
            actions[greedy] = self.values(seen).argmax(axis=1)
        found: list[int] = actions.tolist()
        return found

    def give_up(self) -> Transitions:
        """Leave all episodes; returns the transitions that are left of them. The next step begins other episodes."""
        return self._task.form.joined([row for place in self._places for row in place.give_up()])

    def state_dict(self) -> dict[str, Any]:
        """The state between episodes. ValueError within one: environments cannot be saved, see `give_up`."""
        if any(place.observation is not None for place in self._places):
            raise ValueError("an actor can be saved between episodes only")
        return {"steps": self.steps, "returns": np.array(self.returns, float), "random": self._random.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; episodes under way are dropped."""
        self.give_up()
        self.steps, self.returns = int(state["steps"]), list(np.asarray(state["returns"]))
        self._random.load_state_dict(state["random"])

    def close(self) -> None:
        """Use the environments no more."""
        for place in self._places:
            place.env.close()


def priorities(values: Values, transitions: Transitions) -> NDArray[np.float32]:
    """The absolute errors of transitions by one network, as actors compute them (Horgan et al. 2018, algorithm 1)."""
    rows = np.arange(transitions.rows)
    after = values(transitions.next_observations)
    errors = values(transitions.observations)[rows, transitions.actions] - double_q(transitions, after, after)
    return np.abs(errors).astype(np.float32)


def evaluate(task: Task, values: Values, episodes: int, seed: int, comm: Any = None) -> list[float]:
    """The returns of `episodes` episodes of greedy play, in which every action is the one of the highest value.

    Episode i begins with the seed `seed` + i. With `comm` its ranks share the episodes, and all get all returns; they
    must have the same network. Collective over `comm`.
    """
    mine = range(episodes) if comm is None else range(comm.rank, episodes, comm.size)
    environments = [task.make() for _ in mine]
    observations = [env.reset(seed=seed + i)[0] for env, i in zip(environments, mine, strict=True)]
    returns = np.zeros(len(mine))
    playing = list(range(len(mine)))
    while playing:
        actions = values(np.stack([observations[i] for i in playing])).argmax(axis=1)
        still = []
        for i, action in zip(playing, actions.tolist(), strict=True):
            observations[i], reward, terminated, truncated, _ = environments[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                still.append(i)
        playing = still
    for env in environments:
        env.close()
    found = [returns] if comm is None else comm.allgather(returns)
    ordered = np.empty(episodes)
    for rank, part in enumerate(found):
        ordered[rank :: len(found)] = part
    return [float(total) for total in ordered]
