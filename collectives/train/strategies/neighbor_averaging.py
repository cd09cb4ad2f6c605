"""D-PSGD: each rank averages its parameters with those of its neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..models.nn import Array
from .base import with_parameters
from .finite import check_parameters
from .gossip import Gossip
from .graphs import Graph, Mixing

if TYPE_CHECKING:
    from ..flat.buckets import Bucket


class NeighborAveraging(Gossip):
    """Decentralized parallel SGD (Lian et al., NIPS 2017, algorithm 1).

    ``x_i <- sum_j W_ij (x_j - lr g_j(x_j))`` in each step: W is the mixing matrix of the graph.

    * `graph` (default "ring"): see `graphs`; W changes with the step if the graph does.
    * `overlap` (default: False): average before the gradients are applied, ``x_i <- sum_j W_ij x_j - lr g_i(x_i)``, so
      that the messages go on while the backward pass does. The paper has both orders, with the same rate. This one
      leaves the ranks further apart, by a step of each.
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

    on_device = True

    def __init__(
        self, graph: str | Graph | Array = "ring", overlap: bool = False, final_average: bool = True
    ) -> None:  # fmt: skip
        super().__init__(graph, final_average)
        self.overlap = overlap

    def take_graph(self, mixing: Mixing, rank: int) -> None:
        """Keep this rank's neighbours. ValueError unless mixing preserves the mean."""
        if not mixing.doubly:
            raise ValueError("the graph's mixing matrices are not doubly stochastic, which moves the mean; use PushSum")
        super().take_graph(mixing, rank)

    def on_bucket(self, bucket: Bucket) -> None:
        """With `overlap`, start to exchange the bucket's parameters."""
        super().on_bucket(bucket)
        if self.overlap:
            if bucket.index == 0:
                self.buckets.fetch()
            check_parameters([bucket], self.comm.rank)
            self.start(self._exchanges[bucket.index])

    def before_step(self) -> None:
        """With `overlap`, wait for the neighbours' parameters, and average."""
        if self.overlap:
            self._mix()
            self.buckets.deliver()

    def discard(self) -> None:
        """With `overlap`, wait for parameters that no step will use."""
        if self.overlap:
            for exchange in self._exchanges:
                exchange.wait()

    def after_step(self) -> None:
        """Without `overlap`, average with the neighbours."""
        if not self.overlap:
            self._average()
        super().after_step()

    @with_parameters
    def _average(self) -> None:
        check_parameters(self.buckets.list, self.comm.rank)
        for exchange in self._exchanges:
            self.start(exchange)
        self._mix()

    def _mix(self) -> None:
        for exchange in self._exchanges:
            exchange.mix(self.row)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "overlap": self.overlap}
