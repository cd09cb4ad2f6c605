"""Loss scaling: a factor that keeps small gradients of 16 bits from becoming zero."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..counts import real
from ..loading import fields

SMALLEST = 2.0**-24


class LossScale:
    """The factor of the loss (Micikevicius et al. 2018, sec. 3.2): a fixed number, or "dynamic".

    The dynamic factor begins at 65536. It is halved after a step with gradients that are not finite, and doubled after
    2000 steps without one. Raises ValueError for another word, and for a number that is not positive and finite.
    """

    def __init__(self, scale: float | str, growth: int = 2000) -> None:
        if isinstance(scale, str) and scale != "dynamic":
            raise ValueError(f"loss_scale must be a number or 'dynamic', not {scale!r}")
        self.dynamic = scale == "dynamic"
        self.value = 65536.0 if isinstance(scale, str) else real("loss_scale", scale)
        if not 0 < self.value < math.inf:
            raise ValueError(f"loss_scale must be positive and finite, not {scale}")
        self.growth = growth
        self.good = 0  # steps since the last change

    def update(self, finite: bool) -> None:
        """Take note of a step whose gradients were finite, or not."""
        if not self.dynamic:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.value /= 2
        elif self.good == self.growth:
            self.value, self.good = self.value * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """The factor, whether it is dynamic, and the number of good steps since it changed."""
        return {"value": self.value, "good": self.good, "dynamic": self.dynamic}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; a factor that is not dynamic, or was not, is that of the program."""
        value, good = fields("LossScale", state, value=float, good=int)
        if self.dynamic and state.get("dynamic", True):
            self.value, self.good = value, good
