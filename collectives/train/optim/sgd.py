"""Stochastic gradient descent, and a learning rate for large batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from collectives import span

from ..models.nn import Parameter

Hook = Callable[["SGD", tuple[Any, ...], dict[str, Any]], None]


@dataclass(frozen=True)
class Warmup:
    """The learning rate of step 0, 1, ...: from `lr` linearly up to ``lr * scale`` in `steps` steps, then constant.

    If `scale` is the factor by which the global batch has grown (the number of ranks, for a fixed batch of each rank),
    this is the linear scaling rule with gradual warm-up of Goyal et al. 2017, sec. 2.1 and 2.2. The defaults, `scale` 1
    and `steps` 0, give a constant rate.
    """

    lr: float
    scale: float = 1.0
    steps: int = 0

    def __call__(self, step: int) -> float:
        """The learning rate of `step`, counted from 0."""
        if step >= self.steps:
            return self.lr * self.scale
        return self.lr * (1.0 + (self.scale - 1.0) * step / self.steps)


class SGD:
    """SGD with momentum and weight decay, in PyTorch's form.

    A step computes ``v = momentum * v + grad + weight_decay * w`` and ``w = w - lr * v`` for every parameter w. `lr` is
    a number or a function of the step number (from 0), such as `Warmup`. Raises ValueError unless lr > 0,
    0 <= momentum < 1 and weight_decay >= 0 (the defaults of both are 0).
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float | Callable[[int], float],
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self._schedule = lr if callable(lr) else Warmup(lr)
        if not self.parameters:
            raise ValueError("SGD got no parameters")
        if not self._schedule(0) > 0:
            raise ValueError(f"lr must be positive, not {self._schedule(0)}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {momentum}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, not {weight_decay}")
        self.momentum, self.weight_decay = momentum, weight_decay
        self.steps = 0
        self.strategy: Any = None  # the Strategy, set by distribute
        self._velocity = [np.zeros_like(p.data) for p in self.parameters]
        self._before: list[Hook] = []
        self._after: list[Hook] = []

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self._schedule(self.steps))

    def register_step_pre_hook(self, hook: Hook) -> None:
        """Call ``hook(optimizer, args, kwargs)`` before each step, as in PyTorch."""
        self._before.append(hook)

    def register_step_post_hook(self, hook: Hook) -> None:
        """Call ``hook(optimizer, args, kwargs)`` after each step, as in PyTorch."""
        self._after.append(hook)

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for p in self.parameters:
            p.zero_grad()

    def step(self) -> None:
        """Change every parameter in place, by its gradient (see the class)."""
        with span("step"):
            for hook in self._before:
                hook(self, (), {})
            lr = self.lr
            for p, v in zip(self.parameters, self._velocity, strict=True):
                v *= self.momentum
                v += p.grad
                if self.weight_decay:
                    v += self.weight_decay * p.data
                p.data -= lr * v
            self.steps += 1
            for hook in self._after:
                hook(self, (), {})

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {
            "optimizer": type(self).__name__,
            "lr": self._schedule if isinstance(self._schedule, Warmup) else self._schedule(0),
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
        }

    def state_dict(self) -> dict[str, Any]:
        """The number of steps taken, and copies of the velocities v by parameter name."""
        velocity = {p.name: v.copy() for p, v in zip(self.parameters, self._velocity, strict=True)}
        return {"steps": self.steps, "velocity": velocity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. Raises ValueError unless it has this optimizer's parameters."""
        names = [p.name for p in self.parameters]
        if set(names) != set(state["velocity"]):
            raise ValueError(f"the state is for {sorted(state['velocity'])}, this optimizer for {sorted(names)}")
        for p, v in zip(self.parameters, self._velocity, strict=True):
            v[...] = state["velocity"][p.name]
        self.steps = int(state["steps"])
