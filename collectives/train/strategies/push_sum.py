"""Stochastic gradient push: averaging over directed graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..loading import fields
from ..models.nn import Array
from .base import with_parameters
from .finite import check_parameters
from .gossip import Gossip
from .graphs import Graph, Mixing
from .local import average


class PushSum(Gossip):
    """Stochastic gradient push (Assran et al., ICML 2019, algorithm 1).

    Rank i has parameters x_i and a weight w_i, 1 at first. The network computes with ``z_i = x_i / w_i``. In each step
    ``x_i <- x_i - lr g_i(z_i)``, then ``x_i <- sum_j P_ij x_j`` and ``w_i <- sum_j P_ij w_j`` with the mixing matrix P.

    * `graph` (default "one_peer_exponential"): see `graphs`; it may be directed, and change with the step.
    * `final_average` (default: True): `finish` replaces z by the mean of all ranks' x.

    **Hypotheses.** P is column stochastic, and connected over its period: what ranks give away adds up to what they
    had. So the sum of x is preserved, and the weights add up to p. Without gradients all z_i reach the mean of x.
    Between steps a network has z. The optimizer's step is at x, which matters to weight decay only where weights are
    not 1: never on graphs whose matrices are doubly stochastic. The same program gives the same bits, also after a stop
    and a resume. A checkpoint that is loaded on another number of ranks begins with weights of 1.

    **Costs.** A rank sends its n bytes of parameters and 8 bytes to each target of the round in every step, and waits
    for those that send to it: d n bytes for d targets. Memory: n for each rank that sends to it.

    Raises ValueError for an unknown graph; in `distribute`, for matrices that are not column stochastic or not
    connected, and for parameters of 16 bits.
    """

    on_device = True

    def __init__(self, graph: str | Graph | Array = "one_peer_exponential", final_average: bool = True) -> None:
        super().__init__(graph, final_average)
        self.weight = np.ones(1)

    def take_graph(self, mixing: Mixing, rank: int) -> None:
        """Keep this rank's neighbours, and the parts of itself that it keeps."""
        super().take_graph(mixing, rank)
        self._kept = [float(matrix[rank, rank]) for matrix in mixing.matrices]

    def prepare(self) -> None:
        """Make room for the messages."""
        super().prepare()
        self._weights = self.exchange_of(self.weight, len(self._exchanges))

    def _abandon(self) -> None:
        super()._abandon()
        self._weights.abandon()

    def before_step(self) -> None:
        """Go from z to x, at which the optimizer makes its step, unless there will be none."""
        if self.problem is None:
            self._scale(float(self.weight[0]))

    @with_parameters
    def after_step(self) -> None:
        """Go to z again, and push z and w to the targets of this step.

        The sums are computed as ``z_i <- sum_j a_ij z_j`` with ``a_ij = P_ij w_j / sum_k P_ik w_k``.
        """
        self._scale(1 / float(self.weight[0]))
        check_parameters(self.buckets.list, self.comm.rank)
        for exchange in (self._weights, *self._exchanges):
            self.start(exchange)
        parts = {source: self.row[source] * float(theirs[0]) for source, theirs in self._weights.wait().items()}
        self.weight[0] = self._kept[self.steps % len(self._kept)] * self.weight[0] + sum(parts.values())
        for exchange in self._exchanges:
            exchange.mix({source: part / float(self.weight[0]) for source, part in parts.items()})
        super().after_step()

    def _scale(self, factor: float) -> None:
        if factor != 1:
            self._multiply(factor)

    @with_parameters
    def _multiply(self, factor: float) -> None:
        for data in self.parameters:
            data *= data.dtype.type(factor)

    def merge(self) -> None:
        """Replace the parameters by the mean of x."""
        average(self.comm, self.parameters, float(self.weight[0]))
        self.weight[0] = 1

    def resize(self, comm: Any) -> None:
        """Go on with the ranks of `comm`, from their z, with weights of 1."""
        super().resize(comm)
        self.weight[0] = 1

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, the weight, and for how many ranks that is."""
        return {**super().state_dict(), "weight": float(self.weight[0]), "ranks": self.comm.size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` returned; that of another number of ranks with a weight of 1."""
        weight, ranks = fields(type(self).__name__, state, weight=float, ranks=int)
        super().load_state_dict(state)
        self.weight[0] = weight if ranks == self.comm.size else 1
