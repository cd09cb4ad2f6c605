"""D-PSGD: each rank averages its parameters with those of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..models.nn import Array
from .gossip import Gossip
from .graphs import Graph, Mixing

if TYPE_CHECKING:
    from ..flat.buckets import Bucket


class NeighborAveraging(Gossip):
    """Decentralized parallel SGD (Lian et al., NIPS 2017, algorithm 1).

    ``x_i <- sum_j W_ij x_j - lr g_i(x_i)`` in each step: W is the mixing matrix of the graph, and the gradient is that
    at the old x_i. So messages go on while the backward pass does.

    * `graph` (default "ring"): see `graphs`; W changes with the step if the graph does.
    * `final_average` (default: True): `finish` replaces the parameters by the mean of all ranks, the result of the
      paper. Else each rank keeps its own.

    **Hypotheses.** W is doubly stochastic, so that mixing preserves the ranks' mean, and connected over its period.
    Symmetric matrices are those of the paper; exponential graphs, which are not symmetric, are those of Ying et al.
    (NeurIPS 2021). Without gradients the ranks' distance from their mean shrinks by ``Mixing(graph, p).contraction``
    in a round. The same program gives the same bits, also after a stop and a resume.

    **Costs.** A rank sends its n bytes of parameters to each neighbour of the round in every step, and waits for its
    neighbours only: d n bytes for d neighbours. Memory: d n.

    Raises ValueError for an unknown graph; in `distribute`, for matrices that are not doubly stochastic or not
    connected, and for parameters of 16 bits.
    """

    def __init__(self, graph: str | Graph | Array = "ring", final_average: bool = True) -> None:
        super().__init__(graph, final_average)

    def take_graph(self, mixing: Mixing, rank: int) -> None:
        """Keep this rank's neighbours. ValueError unless mixing preserves the mean."""
        if not mixing.doubly:
            raise ValueError("the graph's mixing matrices are not doubly stochastic, which moves the mean; use PushSum")
        super().take_graph(mixing, rank)

    def on_bucket(self, bucket: Bucket) -> None:
        """Start to exchange the bucket's parameters."""
        super().on_bucket(bucket)
        self.start(self._exchanges[bucket.index])

    def before_step(self) -> None:
        """Wait for the neighbours' parameters, and average."""
        for exchange in self._exchanges:
            exchange.mix(self.row)
