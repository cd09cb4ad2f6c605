"""Federated averaging: in each round some of the ranks train, each on data of its own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..counts import count, real
from .rounds import Rounds


class FedAvg(Rounds):
    """Federated averaging (McMahan et al., AISTATS 2017, algorithm 1).

    In each round ``fraction * p`` of the p ranks, rounded and at least one, are drawn by `seed`, the same on all ranks.
    They make `every` steps apart. Then ``x <- sum_r n_r / N x_r`` over those ranks, on all ranks: n_r are the samples
    of rank r in the round, N is their sum.

    * `every` (default 2): steps of a round. E passes over the data are ``every = E * len(loader)``.
    * `fraction` (default 0.75): the part of the ranks that train in a round.
    * `seed` (default 0): of the draws.

    Only parameters leave a rank. For data that no other rank can read, there is ``Loader(..., placement="local")``;
    the steps of a rank are then in proportion to its number of samples, so that n_r / N is that of the paper.

    A rank that was not drawn idles: its optimizer skips the steps, its parameters stay those of the last merge, and the
    gradients that its loop computes are thrown away. ``trains`` says whether this rank was drawn. With
    ``distribute(unused="zero")`` the loop may leave out the backward pass if it was not.

    **Hypotheses.** As for `LocalSGD`. With ``fraction=1`` this is `LocalSGD` weighted by samples, bit for bit. With
    less, the mean over a round's ranks is that of all only on average over the draws, so labels that few ranks have
    are learnt slowly. The momentum of an optimizer stays on its rank. The same program gives the same bits, also after
    a stop and a resume.

    **Costs.** For n bytes of parameters every rank gives n / every bytes to an all-reduce per step, also those that
    idle. No memory.

    Raises ValueError unless ``every >= 1``, ``0 < fraction <= 1`` and ``seed >= 0``.
    """

    def __init__(self, every: int = 2, fraction: float = 0.75, seed: int = 0) -> None:
        super().__init__(every)
        if not 0 < real("fraction", fraction) <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {fraction}")
        self.fraction, self.seed = fraction, count("seed", seed, 0)

    def drawn(self) -> list[int]:
        """The ranks that train in this round."""
        size = self.comm.size
        draw = np.random.default_rng([self.seed, self.round]).choice(size, self.batches(size), replace=False)
        return sorted(draw.tolist())

    def batches(self, ranks: int) -> int:
        """Those of the ranks that train in a round, of whose parameters the next ones are the mean."""
        return max(1, math.floor(self.fraction * ranks + 0.5))

    @property
    def trains(self) -> bool:
        """Whether this rank trains in this round."""
        return self.comm.rank in self.drawn()

    def before_step(self) -> bool:
        """Skip the step unless this rank trains in this round."""
        if self.trains:
            return True
        self.samples = 0
        self.after_step()
        return False

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "fraction": self.fraction, "seed": self.seed}
