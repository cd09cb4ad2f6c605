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


class Actor:
    """Plays `task` by the values of a network; with a probability of ``epsilon(steps)`` an action is random.

    ``steps`` counts the steps, ``returns`` has the returns of the episodes that have ended. All randomness, that of the
    environment too, comes from `random`.
    """

    def __init__(
        self, task: Task, values: Values, random: train.Random, n: int, gamma: float, epsilon: Callable[[int], float]
    ) -> None:
        self.values, self.epsilon, self.steps = values, epsilon, 0
        self.returns: list[float] = []
        self._task, self._random, self._assembler = task, random, NStep(n, gamma)
        self._env = task.make()
        self._observation: Any = None  # None: an episode is to begin
        self._return = 0.0

    def play(self, steps: int) -> Transitions:
        """Take so many steps; returns the transitions that they complete."""
        rows = []
        for _ in range(steps):
            rows += self._step()
        return self._task.form.joined(rows)

    def _step(self) -> list[Any]:
        generator = self._random.generator
        if self._observation is None:
            self._observation, _ = self._env.reset(seed=int(generator.integers(2**31)))
            self._return = 0.0
        before = self._observation
        if generator.random() < self.epsilon(self.steps):
            action = int(generator.integers(self._task.actions))
        else:
            action = int(self.values(before[None])[0].argmax())
        after, reward, terminated, truncated, _ = self._env.step(action)
        self.steps += 1
        self._return += float(reward)
        self._observation = after
        if terminated or truncated:
            self.returns.append(self._return)
            self._observation = None
        return self._assembler.push(before, action, self._task.learnt(float(reward)), after, terminated, truncated)

    def give_up(self) -> Transitions:
        """Leave the episode; returns the transitions that are left of it. The next step begins another episode."""
        rows = [] if self._observation is None else self._assembler.cut(self._observation)
        self._observation = None
        return self._task.form.joined(rows)

    def state_dict(self) -> dict[str, Any]:
        """The state between episodes. ValueError within one: environments cannot be saved, see `give_up`."""
        if self._observation is not None:
            raise ValueError("an actor can be saved between episodes only")
        return {"steps": self.steps, "returns": np.array(self.returns, float), "random": self._random.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; an episode under way is dropped."""
        self.give_up()
        self.steps, self.returns = int(state["steps"]), list(np.asarray(state["returns"]))
        self._random.load_state_dict(state["random"])

    def close(self) -> None:
        """Use the environment no more."""
        self._env.close()


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
