"""Learning rates as functions of the samples that all ranks together have seen, and access to an optimizer's rate.

A rate that depends on samples, and not on steps, stays right if the global batch changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..counts import real

Schedule = Callable[[float], float]
RULES = ("linear", "sqrt", "none")


def scaled(lr: float, factor: float, rule: str = "linear") -> float:
    """The rate `lr` for a global batch that is `factor` times as long as the one that `lr` was chosen for.

    * ``"linear"`` (default): ``lr * factor`` (Goyal et al. 2017, sec. 2.1), for SGD.
    * ``"sqrt"``: ``lr * sqrt(factor)`` (Krizhevsky 2014, sec. 5), for Adam (Malladi et al. 2022, sec. 5).
    * ``"none"``: `lr`.

    Raises ValueError for another rule, and unless `factor` is positive.
    """
    if rule not in RULES:
        raise ValueError(f"unknown scaling rule {rule!r}; there are {', '.join(RULES)}")
    if not real("factor", factor) > 0:
        raise ValueError(f"factor must be positive, not {factor}")
    return lr * {"linear": factor, "sqrt": math.sqrt(factor), "none": 1.0}[rule]


@dataclass(frozen=True)
class Constant:
    """The rate `lr`, always. Raises ValueError if it is negative."""

    lr: float

    def __post_init__(self) -> None:
        _not_negative(lr=self.lr)

    def __call__(self, samples: float) -> float:
        """The rate after `samples` samples."""
        return self.lr


@dataclass(frozen=True)
class Warmup:
    """Gradual warm-up (Goyal et al. 2017, sec. 2.2): from `start` linearly to the first rate of `then`, in `samples`
    samples; after that, `then`.

    `then` is a schedule, which counts samples from the end of the warm-up, or a constant rate. The default of `start`
    is 0. For the linear scaling rule: ``Warmup(scaled(lr, ranks), samples=5 * len(dataset), start=lr)``. Raises
    ValueError for negative arguments.
    """

    then: Schedule | float
    samples: float
    start: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(samples=self.samples, start=self.start)
        if not callable(self.then):
            _not_negative(then=self.then)

    def __call__(self, samples: float) -> float:
        """The rate after `samples` samples."""
        after = samples - self.samples
        end = self.then(max(after, 0)) if callable(self.then) else self.then
        return end if after >= 0 else self.start + (end - self.start) * samples / self.samples


@dataclass(frozen=True)
class Cosine:
    """From `lr` to `final` (default 0) in `samples` samples, by half a cosine (Loshchilov & Hutter 2017, eq. 5);
    then `final`. Raises ValueError for negative rates, and unless `samples` is positive."""

    lr: float
    samples: float
    final: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(lr=self.lr, final=self.final)
        if not real("samples", self.samples) > 0:
            raise ValueError(f"samples must be positive, not {self.samples}")

    def __call__(self, samples: float) -> float:
        """The rate after `samples` samples."""
        done = min(samples / self.samples, 1.0)
        return self.final + (self.lr - self.final) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Steps:
    """The rate `lr`, multiplied by `factor` (default 0.1) at each number of samples in `at`.

    Raises ValueError for a negative rate or factor, and unless `at` is ascending.
    """

    lr: float
    at: tuple[float, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _not_negative(lr=self.lr, factor=self.factor)
        if list(self.at) != sorted(self.at):
            raise ValueError(f"at must be ascending, not {self.at}")

    def __call__(self, samples: float) -> float:
        """The rate after `samples` samples."""
        return self.lr * self.factor ** sum(samples >= limit for limit in self.at)


def _not_negative(**numbers: float) -> None:
    for name, value in numbers.items():
        if not real(name, value) >= 0:
            raise ValueError(f"{name} must not be negative, not {value}")


def set_lr(opt: Any, lr: float) -> None:
    """Set the learning rate of an optimizer, of torch.optim or of this package; all groups of torch's get it.

    Raises TypeError for what is no optimizer, ValueError for a negative rate.
    """
    groups = _groups(opt)
    set_lrs(opt, [lr] * (1 if groups is None else len(groups)))


def set_lrs(opt: Any, lrs: Sequence[float]) -> None:
    """Set the learning rates of the groups of an optimizer, which `get_lrs` returns. ValueError for a negative one."""
    for lr in lrs:
        _not_negative(lr=lr)
    groups = _groups(opt)
    if groups is None:
        (opt.lr,) = lrs
        return
    for group, lr in zip(groups, lrs, strict=True):
        if hasattr(group["lr"], "fill_"):  # torch keeps a tensor if it was given one
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def get_lr(opt: Any) -> float:
    """The learning rate of an optimizer, of torch.optim (its first group) or of this package.

    Raises TypeError for what is no optimizer.
    """
    return get_lrs(opt)[0]


def _groups(opt: Any) -> Any:
    """The groups of an optimizer of torch.optim, None of another one. TypeError for what is no optimizer."""
    groups = getattr(opt, "param_groups", None)
    if groups is None and not hasattr(opt, "lr"):
        raise TypeError(f"{type(opt).__name__} has no learning rate")
    return groups


def get_lrs(opt: Any) -> list[float]:
    """The learning rates of an optimizer, one for each group of torch.optim's. TypeError for what is no optimizer."""
    groups = _groups(opt)
    return [float(opt.lr)] if groups is None else [float(group["lr"]) for group in groups]
