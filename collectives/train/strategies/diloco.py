"""DiLoCo: local steps, whose mean is the gradient of an outer optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..counts import real
from ..loading import fields
from .rounds import Rounds


class DiLoCo(Rounds):
    """Distributed low-communication training (Douillard et al., arXiv 2311.08105, algorithm 1).

    All ranks begin a round at the same parameters y and make `every` steps apart, each to its own x_r. The mean of the
    differences, ``d = y - sum_r w_r x_r``, is the gradient of an outer SGD with momentum:
    ``v <- outer_momentum v + d``, then ``y <- y - outer_lr (d + outer_momentum v)`` with Nesterov's momentum, or
    ``y <- y - outer_lr v`` without. The next round begins at y on all ranks.

    * `every` (default 8): steps of a round. The paper has 500, in runs of tens of thousands of steps.
    * `outer_lr` (default 0.7, as in the paper), `outer_momentum` (default 0.8), `nesterov` (default: True). The paper's
      momentum is 0.9, for hundreds of rounds; 0.8 is better for some tens of them.
    * `weighted` (default: True): w_r is in proportion to the samples of rank r in the round; else it is 1/p.

    **Hypotheses.** The inner optimizer, AdamW in the paper, is each rank's own and is not merged. With ``outer_lr=1``
    and ``outer_momentum=0`` this is `LocalSGD`, up to rounding. The outer momentum multiplies the way of a round by up
    to ``outer_lr / (1 - outer_momentum)``, so the inner learning rate is that of one rank, not one that was scaled for
    the global batch. The same program gives the same bits, also after a stop and a resume.

    **Costs.** For n bytes of parameters a rank gives n / every bytes to an all-reduce per step. Memory: 2 n, for y
    and v.

    Raises ValueError unless ``every >= 1``, ``outer_lr > 0`` and ``0 <= outer_momentum < 1``.
    """

    def __init__(
        self, every: int = 8, outer_lr: float = 0.7, outer_momentum: float = 0.8, nesterov: bool = True, *,
        weighted: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(every, weighted)
        if not 0 < real("outer_lr", outer_lr) < np.inf:
            raise ValueError(f"outer_lr must be positive and finite, not {outer_lr}")
        if not 0 <= real("outer_momentum", outer_momentum) < 1:
            raise ValueError(f"outer_momentum must be in [0, 1), not {outer_momentum}")
        self.outer_lr, self.outer_momentum, self.nesterov = outer_lr, outer_momentum, nesterov

    def setup(self, net: Any, opt: Any, comm: Any) -> None:
        """See `Strategy.setup`."""
        super().setup(net, opt, comm)
        self._outer = [data.copy() for data in self.parameters]
        self._velocity = [np.zeros_like(data) for data in self.parameters]
        self.follow_loads(self._outer)

    def before_step(self) -> None:
        """Begin at parameters that were loaded."""
        self.begin_at_loaded()

    def merge(self, share: float) -> None:
        """Average the parameters, make a step of the outer optimizer, and begin at its result."""
        self.begin_at_loaded()
        super().merge(share)
        for data, outer, velocity in zip(self.parameters, self._outer, self._velocity, strict=True):
            number = data.dtype.type
            change = outer - data
            velocity *= number(self.outer_momentum)
            velocity += change
            if self.nesterov:
                change += number(self.outer_momentum) * velocity
            else:
                change[...] = velocity
            outer -= number(self.outer_lr) * change
            data[...] = outer

    def batches(self, ranks: int) -> int:
        """1: the outer optimizer makes the way of a round longer already, so inner steps keep the rate of one rank."""
        return 1

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        own = ("outer_lr", "outer_momentum", "nesterov")
        return {**super().settings(), **{key: getattr(self, key) for key in own}}

    def state_dict(self) -> dict[str, Any]:
        """The counters, the parameters at which the round began, and the outer momentum."""
        self.begin_at_loaded()
        return {**super().state_dict(), "outer": self.by_name(self._outer), "velocity": self.by_name(self._velocity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        outer, velocity = fields(type(self).__name__, state, outer=dict, velocity=dict)
        super().load_state_dict(state)
        self.take_by_name(self._outer, outer)
        self.take_by_name(self._velocity, velocity)
