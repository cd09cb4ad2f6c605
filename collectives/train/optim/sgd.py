"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..counts import real
from ..models.nn import Array, Parameter
from .base import Optimizer


class SGD(Optimizer):
    """SGD with momentum and weight decay, in PyTorch's form.

    A step computes ``v = momentum * v + grad + weight_decay * w`` and ``w = w - lr * v`` for every parameter w. Raises
    ValueError unless lr >= 0, 0 <= momentum < 1 and weight_decay >= 0 (the defaults of the last two are 0).
    """

    arrays = ("velocity",)

    def __init__(
        self, parameters: Iterable[Parameter], lr: float, *, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr, weight_decay=weight_decay)
        if not 0 <= real("momentum", momentum) < 1:
            raise ValueError(f"momentum must be in [0, 1), not {momentum}")
        self.momentum = momentum

    def update(self, data: Array, grad: Array, *kept: Array) -> None:
        """See `Optimizer.update`."""
        (v,) = kept
        v *= data.dtype.type(self.momentum)
        v += grad
        if self.weight_decay:
            v += data.dtype.type(self.weight_decay) * data
        data -= data.dtype.type(self.lr) * v

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "momentum": self.momentum}
