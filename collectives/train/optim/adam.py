"""Adam and AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..counts import real
from ..models.nn import Array, Parameter
from .base import Optimizer


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), in PyTorch's form: `weight_decay` is added to the gradient.

    `betas`: the decay rates of the means of gradients and of their squares (default (0.9, 0.999)). `eps` is added to
    the root of the second mean (default 1e-8). Raises ValueError unless both betas are in [0, 1), eps >= 0, lr >= 0 and
    weight_decay >= 0 (default 0).
    """

    arrays = ("mean", "square")

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, weight_decay=weight_decay)
        if not (isinstance(betas, tuple | list) and len(betas) == 2):
            raise TypeError(f"betas must be two numbers, not {betas!r}")
        if not all(0 <= real("betas", beta) < 1 for beta in betas):
            raise ValueError(f"betas must be in [0, 1), not {betas}")
        if not real("eps", eps) >= 0:
            raise ValueError(f"eps must not be negative, not {eps}")
        self.betas, self.eps = betas, eps

    def decay(self, data: Array, grad: Array) -> Array:
        """Apply the weight decay; returns the gradient to be used."""
        return grad + data.dtype.type(self.weight_decay) * data if self.weight_decay else grad

    def update(self, data: Array, grad: Array, *kept: Array) -> None:
        """See `Optimizer.update`."""
        mean, square = kept
        number = data.dtype.type
        grad = self.decay(data, grad)
        mean += number(1 - self.betas[0]) * (grad - mean)
        square *= number(self.betas[1])
        square += number(1 - self.betas[1]) * (grad * grad)
        first, second = (1 - beta**self.steps for beta in self.betas)
        root = np.sqrt(square)
        root /= number(math.sqrt(second))
        root += number(self.eps)
        np.divide(mean, root, out=root)
        root *= number(self.lr / first)
        data -= root

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "betas": tuple(self.betas), "eps": self.eps}


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2), in PyTorch's form.

    Each step first multiplies a parameter by ``1 - lr * weight_decay`` (default of the latter: 0.01). The other
    arguments are those of `Adam`.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def decay(self, data: Array, grad: Array) -> Array:
        """See `Adam.decay`."""
        data *= data.dtype.type(1 - self.lr * self.weight_decay)
        return grad
