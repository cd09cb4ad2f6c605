"""``follow``: the course of a run, which is the same for all algorithms: play and learn, evaluate, end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from .acting import evaluate
from .memory import Memory
from .networks import Values
from .settings import Settings
from .tasks import Task

T = TypeVar("T")
TRIALS, FINAL = 1_000_000_000, 1_500_000_000  # seeds of episodes of trials and of the evaluation at the end
SEEDS = 10_000  # of one run


class Player(Protocol):
    """An algorithm under way, on this rank.

    ``trains`` says whether this rank does more than serve others; only then it has the rest. ``memory`` is its replay
    if it has one. ``steps`` are the environment steps of all ranks, ``updates`` those of the network. ``comm`` is a
    communicator of the ranks that train, ``everyone`` one of all ranks; either is None for this one alone.
    ``traffic`` counts what was sent since the environment step ``counted_from``.
    """

    trains: bool
    values: Values
    comm: Any
    everyone: Any
    memory: Memory | None
    steps: int
    updates: int
    counted_from: int

    def advance(self, until: int) -> None:
        """Go on to about `until` environment steps. Collective.

        Then all ranks of ``comm`` have the learner's network in ``values``. FloatingPointError on all of them if
        learning has diverged; the run can only be closed then.
        """

    def together(self, work: Callable[[Any], T]) -> T:
        """``work(self.comm)``, collective on that; again without a rank that dies meanwhile. Collective."""

    def close(self) -> None:
        """End the algorithm on all ranks. Collective."""

    def traffic(self) -> dict[str, int]:
        """The bytes of messages by path, of all ranks. Collective over all ranks, after `close`."""

    def counts(self) -> dict[str, Any]:
        """What else was counted. Collective over all ranks, after `close`."""

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, between calls of `advance`. Collective."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's state. Collective."""


class Record(NamedTuple):
    """What an evaluation has found."""

    env_steps: int
    updates: int
    seconds: float
    mean_return: float


class Course(NamedTuple):
    """A run that has ended: whether it reached the threshold, the evaluations on the way, and the one at the end."""

    solved: bool
    trials: list[Record]
    final: Record


def follow(
    player: Player, task: Task, settings: Settings, seed: int, say: Callable[[str], None],
    after: Callable[[], None] = lambda: None,
) -> Course:  # fmt: skip
    """Let `player` play and learn until its task is solved, or for ``settings.max_steps``; see `Settings`.

    ``after()`` is called after each evaluation. Collective.
    """
    begin, trials = time.perf_counter(), []

    def tried(episodes: int, first: int) -> Record:
        begins = (first + SEEDS * seed) % 2**31
        returns = player.together(lambda comm: evaluate(task, player.values, episodes, begins, comm))
        return Record(player.steps, player.updates, time.perf_counter() - begin, float(np.mean(returns)))

    solved, final = False, None
    while player.steps < settings.max_steps and not solved:
        player.advance(min(player.steps + settings.evaluate_every, settings.max_steps))
        trials.append(tried(settings.trials, TRIALS))
        record, final = trials[-1], None
        say(
            f"{record.env_steps:8} steps, {record.updates:7} updates, {record.seconds:6.1f} s: "
            f"mean return {record.mean_return:.1f}"
        )
        if task.threshold is not None and record.mean_return >= task.threshold:
            final = tried(settings.episodes, FINAL)
            solved = final.mean_return >= task.threshold
        after()
    return Course(solved, trials, final or tried(settings.episodes, FINAL))
