"""``Task``: an environment of Gymnasium, and what must be known of it to learn it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .transitions import Array, Form

FRAMES = 4  # that are stacked, and for which an action is repeated (Mnih et al. 2015, methods)


class Task(NamedTuple):
    """An environment by name: ``make()`` makes one, ``threshold`` is the mean return at which it counts as solved.

    Rewards are learnt from as ``learnt(reward)``; returns are counted as the environment gives them.
    """

    name: str
    form: Form
    actions: int
    make: Callable[[], Any]
    threshold: float | None
    learnt: Callable[[float], float]


def task(name: str, *, actions: Sequence[int] = (), side: int = 80) -> Task:
    """The task of an environment: observations are arrays of one shape, actions are numbers from 0 on.

    Of the environment's actions only `actions` are used, which are then 0, 1, ... here; without any, all are. The games
    of ALE, whose names begin with "ALE/", are seen as stacked frames of `side` x `side` pixels (see `Frames`), and the
    signs of rewards are learnt from. ImportError without Gymnasium, or without ale-py for its games; ValueError for
    other environments, or if they do not have these actions.
    """
    if importlib.util.find_spec("gymnasium") is None:
        raise ImportError("reinforcement learning needs gymnasium, which is not installed: pip install gymnasium")
    import gymnasium

    atari = name.startswith("ALE/")
    if atari:
        _register_games()

    def make() -> Any:
        env: Any
        try:
            if atari:
                how: dict[str, Any] = {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
                env = Frames(gymnasium.make(name, disable_env_checker=True, **how), side)
            else:
                env = gymnasium.make(name, disable_env_checker=True)
        except gymnasium.error.Error as error:
            raise ValueError(f"there is no environment {name!r}: {error}") from error
        return Chosen(env, tuple(actions)) if actions else env

    env = make()
    space, offered = env.observation_space, env.action_space
    threshold = env.spec.reward_threshold
    env.close()
    if not isinstance(offered, gymnasium.spaces.Discrete) or offered.start != 0:
        raise ValueError(f"{name}: actions must be numbers from 0 on, not {offered}")
    if len(set(actions)) < len(actions) or not all(0 <= action < offered.n for action in actions):
        raise ValueError(f"{name}: actions must be different numbers below {offered.n}, not {tuple(actions)}")
    if not isinstance(space, gymnasium.spaces.Box):
        raise ValueError(f"{name}: observations must be arrays, not {space}")
    dtype = "|u1" if space.dtype == np.uint8 else "<f4"
    form = Form(tuple(space.shape), dtype)
    return Task(name, form, len(actions) or int(offered.n), make, threshold, _sign if atari else float)


def _sign(reward: float) -> float:
    return float(np.sign(reward))


def _register_games() -> None:
    if importlib.util.find_spec("ale_py") is None:
        raise ImportError("the games of ALE need ale-py, which is not installed: pip install ale-py")
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)


class Chosen:
    """The environment `env` with some of its actions only: action i is the environment's ``actions[i]``."""

    def __init__(self, env: Any, actions: tuple[int, ...]) -> None:
        self._env, self._actions = env, actions
        self.spec, self.observation_space, self.action_space = env.spec, env.observation_space, env.action_space

    def reset(self, *, seed: int) -> Any:
        """Begin an episode."""
        return self._env.reset(seed=seed)

    def step(self, action: int) -> Any:
        """Take an action."""
        return self._env.step(self._actions[action])

    def close(self) -> None:
        """Use the environment no more."""
        self._env.close()


class Frames:
    """A game of ALE, seen as the last 4 frames: (4, `side`, `side`), of 8 bits.

    As in Mnih et al. 2015 an action is repeated for 4 frames, a frame is the larger one of the last two, pixel by
    pixel, an episode begins with up to 30 frames of no action, and ends with the game. Other than there, a frame is
    the game's rows 34 to 193, of which each 2 x 2 pixels (4 x 4 for a `side` of 40) are one: their mean.
    """

    def __init__(self, env: Any, side: int = 80) -> None:
        import gymnasium

        if side not in (40, 80):
            raise ValueError(f"side must be 40 or 80, not {side}")
        self._env, self.spec, self.action_space = env, env.spec, env.action_space
        self.observation_space = gymnasium.spaces.Box(0, 255, (FRAMES, side, side), np.uint8)
        self._stack = np.zeros((FRAMES, side, side), np.uint8)

    def reset(self, *, seed: int) -> tuple[Array, dict[str, Any]]:
        """Begin an episode."""
        frame, info = self._env.reset(seed=seed)
        for _ in range(seed % 31):
            frame, *_ = self._env.step(0)
        self._stack[:] = _small(frame, self._stack.shape[1])
        return self._stack.copy(), info

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Repeat an action for 4 frames, or to the end of the game."""
        total = 0.0
        last: list[Array] = []
        for _ in range(FRAMES):
            frame, reward, terminated, truncated, info = self._env.step(action)
            total += float(reward)
            last = [*last[-1:], frame]
            if terminated or truncated:
                break
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = _small(np.maximum(last[0], last[-1]), self._stack.shape[1])
        return self._stack.copy(), total, terminated, truncated, info

    def close(self) -> None:
        """Use the game no more."""
        self._env.close()


def _small(frame: Array, side: int) -> Array:
    """The mean of each tile of pixels. Rows are added first: sums of long rows are quick, those of short tiles not."""
    tile = 160 // side
    rows = frame[34:194].reshape(side, tile, 160).sum(axis=1, dtype=np.uint16)
    total = sum(rows[:, place::tile] for place in range(tile))
    small: Array = (total // (tile * tile)).astype(np.uint8)
    return small
