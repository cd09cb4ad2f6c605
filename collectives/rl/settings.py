"""``Settings``: the numbers of a run, with what they are by default for each algorithm and environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from .. import train
from . import networks
from .networks import NumpyValues, Values
from .replay import Prioritised, Replay, Uniform
from .tasks import Task

ALGORITHMS = ("dqn", "apex", "gorila")


@dataclass(frozen=True)
class Settings:
    """The numbers of a run. The comments say which defaults are a paper's; others are our own.

    * Environment: `actions`, those of its actions that are used (none: all); the `side` of a game's frames, 80 or 40.
    * Network: `hidden` layers, `dueling` heads, `library` "numpy" or "torch"; for frames `convolutions`, of which each
      is three numbers, channels, side and stride, and the last of `hidden` alone.
    * Learning: discount `gamma`, `n` steps of a transition, `batch`, `lr` of Adam, `clip` (largest norm of a gradient;
      not of Gorila's), `target_every` updates.
    * Replay: `capacity` and `start`, the transitions at which learning begins, of all shards together; `prioritised`,
      `alpha`, `beta`. See `check_room` for the least capacity.
    * Pace: `ratio` environment steps to each update; `max_steps` environment steps of all actors together.
    * Exploration: from `epsilon_first` to `epsilon_last` in `epsilon_steps` steps of all actors together; for Ape-X
      `epsilon_base` and `epsilon_alpha`.
    * Evaluation: after each `evaluate_every` environment steps greedily, over `trials` episodes; if those reach the
      threshold, and at the end, over `episodes`.
    * Ape-X: an actor sends `chunk` transitions at once, and asks for parameters every `fetch_every` of its steps;
      `ahead` batches wait at the learner. It plays in `envs` environments in turn, which count as so many actors.
    * Gorila: `oldest`, the most updates by others for which a gradient is still used; `deviations`, by how many
      standard deviations a loss may exceed the running mean; a gradient of a larger loss is dropped.
    """

    actions: tuple[int, ...] = ()
    side: int = 80
    hidden: tuple[int, ...] = (128, 128)
    convolutions: tuple[int, ...] = networks.MNIH_2015
    dueling: bool = True
    library: str = "numpy"
    gamma: float = 0.99
    n: int = 3  # Horgan et al. 2018
    batch: int = 64
    lr: float = 1e-3
    clip: float | None = 40.0  # Horgan et al. 2018
    target_every: int = 100
    capacity: int = 50_000
    start: int = 1000
    prioritised: bool = True
    alpha: float = 0.6  # Horgan et al. 2018
    beta: float = 0.4  # Horgan et al. 2018
    ratio: float = 2.0
    max_steps: int = 200_000
    epsilon_first: float = 1.0
    epsilon_last: float = 0.05
    epsilon_steps: int = 10_000
    epsilon_base: float = 0.4  # Horgan et al. 2018
    epsilon_alpha: float = 7.0  # Horgan et al. 2018
    evaluate_every: int = 5000
    trials: int = 20
    episodes: int = 100
    chunk: int = 50  # Horgan et al. 2018
    fetch_every: int = 400  # Horgan et al. 2018
    ahead: int = 16  # Horgan et al. 2018
    envs: int = 1
    oldest: int = 10
    deviations: float = 4.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in LEAST and not (LEAST[field.name] <= value < math.inf):
                raise ValueError(f"{field.name} must be at least {LEAST[field.name]:g}, not {value}")
        if self.library not in ("numpy", "torch"):
            raise ValueError(f"library must be numpy or torch, not {self.library!r}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], not {self.gamma}")
        if self.side not in (40, 80):
            raise ValueError(f"side must be 40 or 80, not {self.side}")
        if len(self.convolutions) % 3 or min(self.convolutions, default=1) < 1:
            raise ValueError(f"convolutions must be threes of numbers of at least 1, not {self.convolutions}")
        if not self.hidden or min(self.hidden) < 1:
            raise ValueError(f"hidden must be widths of at least 1, not {self.hidden}")
        if self.start < self.batch or self.capacity < self.start:
            raise ValueError(
                "batch, start and capacity must not fall from one to the next: "
                f"{self.batch}, {self.start}, {self.capacity}"
            )
        if self.chunk % self.envs:
            raise ValueError(f"chunk must be a multiple of envs, not {self.chunk} of {self.envs}")
        if self.start > self.max_steps:
            raise ValueError(f"start must be at most max_steps, not {self.start} of {self.max_steps}")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be finite and above 0, not {self.clip}")
        for name in ("epsilon_first", "epsilon_last", "epsilon_base"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")

    def check_room(self, replays: int, steps: int, envs: int = 1) -> None:
        """Raise ValueError unless each of `replays` replays has room for all transitions that may come at once.

        At an episode's end, `steps` steps in `envs` environments complete n - 1 transitions of each more.
        """
        room, most = math.ceil(self.capacity / replays), steps + (self.n - 1) * envs
        if room < most:
            which = "the replay" if replays == 1 else f"each of {replays} replays"
            raise ValueError(
                f"with capacity={self.capacity} {which} has room for {room} transitions, not for the "
                f"{most} that may come at once"
            )

    def replay(self, task: Task, shards: int = 1) -> Replay:
        """One of `shards` replays that have the capacity together."""
        capacity = math.ceil(self.capacity / shards)
        if self.prioritised:
            return Prioritised(capacity, task.form, alpha=self.alpha)
        return Uniform(capacity, task.form)

    def makers(self, task: Task, seed: int) -> tuple[Callable[[], Values], Callable[[Values], Any]]:
        """Functions that make a network of this seed, and an optimizer of it. ImportError without torch if needed."""
        if self.library == "torch":
            from . import torch

            return lambda: torch.values(self, task, seed), lambda values: torch.adam(values, self.lr)

        def make() -> Values:
            rng = train.Random(seed, "network", 0).generator
            if task.form.stacked:
                net = networks.convolutional(
                    task.form.shape,
                    task.actions,
                    rng=rng,
                    convolutions=self.convolutions,
                    hidden=self.hidden[-1],
                    dueling=self.dueling,
                    pixels=task.form.pixels,
                )
            else:
                net = networks.perceptron(
                    task.form.shape, task.actions, rng=rng, hidden=self.hidden, dueling=self.dueling
                )
            return NumpyValues(net)

        return make, lambda values: train.Adam(values.net.parameters(), lr=self.lr)


#: The least value of settings that are numbers with a bound.
LEAST = {
    "n": 1, "batch": 1, "lr": 0, "target_every": 1, "capacity": 1, "start": 1, "alpha": 0, "beta": 0, "ratio": 1e-3,
    "max_steps": 1, "epsilon_steps": 1, "epsilon_alpha": 0, "evaluate_every": 1, "trials": 1, "episodes": 1,
    "chunk": 1, "fetch_every": 1, "ahead": 1, "envs": 1, "oldest": 0, "deviations": 1e-9,
}  # fmt: skip

_BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "dqn": {"prioritised": False},  # Mnih et al. 2015
    "apex": {},
    "gorila": {"prioritised": False},  # Nair et al. 2015
}
#: By the beginning of an environment's name.
_BY_ENVIRONMENT: dict[str, dict[str, Any]] = {
    "Acrobot-": {"max_steps": 100_000},
    "CartPole-": {"max_steps": 100_000},
    "ALE/": {
        "side": 40, "convolutions": (16, 6, 3, 32, 4, 2), "hidden": (128,), "batch": 32, "lr": 2e-4,
        "target_every": 500, "capacity": 100_000, "start": 8000, "envs": 4, "chunk": 48, "max_steps": 300_000,
        "epsilon_alpha": 3.0, "epsilon_steps": 50_000, "evaluate_every": 20_000, "trials": 4, "episodes": 20,
    },
    "ALE/Pong-": {"actions": (0, 2, 3)},  # the other three do the same
}  # fmt: skip


def settings(algorithm: str, environment: str, **given: Any) -> Settings:
    """The defaults for an algorithm and an environment, but for what is `given`. TypeError for an unknown name.

    ValueError for an unknown algorithm, and for numbers out of bounds.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"the algorithms are {', '.join(ALGORITHMS)}, not {algorithm!r}")
    known: dict[str, Any] = {}
    for beginning, numbers in _BY_ENVIRONMENT.items():
        if environment.startswith(beginning):
            known |= numbers
    return replace(Settings(), **{**known, **_BY_ALGORITHM[algorithm], **given})
