"""A small task without Gymnasium: a corridor, whose right end is worth 1. An episode is cut off after 20 steps."""

import numpy as np

from collectives.rl import Form, Settings, Task

LENGTH, LONGEST = 6, 20
SMALL = {
    "hidden": (8, 8), "batch": 8, "capacity": 400, "start": 24, "chunk": 10, "fetch_every": 20, "evaluate_every": 120,
    "max_steps": 240, "target_every": 10, "trials": 3, "episodes": 5, "lr": 1e-2, "epsilon_steps": 300,
}  # fmt: skip


class Corridor:
    """Begins at a random place of the left half. Action 1 goes to the right, 0 to the left."""

    def reset(self, *, seed):
        self._rng = np.random.default_rng(seed)
        self._place, self._steps = int(self._rng.integers(LENGTH // 2)), 0
        return self._seen(), {}

    def step(self, action):
        self._place = max(0, self._place + (1 if action == 1 else -1))
        self._steps += 1
        ended = self._place == LENGTH
        return self._seen(), float(ended), ended, self._steps == LONGEST, {}

    def _seen(self):
        return np.array([self._place / LENGTH, 1.0], np.float32)

    def close(self):
        self._steps = None


class Pictured(Corridor):
    """The corridor as a game: the last two frames, of which the column of the place is bright."""

    def reset(self, *, seed):
        self._stack = None
        return super().reset(seed=seed)

    def _seen(self):
        frame = np.zeros((5, LENGTH + 2), np.uint8)
        frame[:, self._place] = 255
        self._stack = np.stack([frame if self._stack is None else self._stack[1], frame])
        return self._stack


PIXELS = {"convolutions": (4, 3, 1), "hidden": (8,), "envs": 2}


def pictured(threshold=None):
    return Task("pictured", Form((2, 5, LENGTH + 2), "|u1"), 2, Pictured, threshold, float)


def corridor(threshold=None):
    return Task("corridor", Form((2,), "<f4"), 2, Corridor, threshold, float)


def small(**changes):
    return Settings(**{**SMALL, **changes})
