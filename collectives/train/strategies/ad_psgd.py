"""AD-PSGD: pairs of ranks average their parameters, while all ranks go on."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counts import count
from ..deaths import naming_the_dead
from ..models.nn import Array
from .finite import check_parameters
from .gossip import Gossip
from .graphs import Graph, Mixing, roles
from .pairs import Active, Passive
from .pattern import PARAMETERS, Action, Pattern, Post

if TYPE_CHECKING:
    from ..flat.buckets import Bucket

NAP = 1e-4  # seconds between looks at messages after the last step


class ADPSGD(Gossip):
    """Asynchronous decentralized parallel SGD (Lian et al., ICML 2018, algorithm 1).

    Ranks are active or passive, and only pairs of both average (see `graphs.roles`). An active rank i draws one of its
    neighbours, j, and sends it x_i. Rank j answers with its x_j. Both go half of the way that is between these two:
    ``x_i <- x_i + (x_j - x_i) / 2`` and ``x_j <- x_j + (x_i - x_j) / 2``. All ranks make their steps,
    ``x <- x - lr g(x)``, meanwhile.

    * `graph` (default "ring"): who may average with whom in any step; see `graphs`.
    * `seed` (default 0): of the draws.
    * `final_average` (default: True): `finish` replaces the parameters by the mean of all ranks.

    **Waiting.** A rank looks for messages before and after each step, and waits for none. An active rank makes steps
    until its answer is there, and then draws again. A passive rank answers all that ask. So a slow neighbour answers
    late, after up to one of its own steps, and delays nobody's steps. Ranks of one role never need each other, so there
    is no deadlock. In `finish`, which is collective, a rank answers until all ranks have finished.

    **Hypotheses.** Averaging preserves the mean of all ranks, once no exchange is under way. An answer that comes k
    steps late acts like one at once with gradients that are k steps old: this is the paper's staleness, which must be
    bounded (assumption 1). The order of messages is that of the clocks, so no two runs have the same bits. A checkpoint
    has no exchanges under way: after a resume, only the passive rank has gone its half of such a one.

    **Costs.** An active rank sends its n bytes of parameters at most once in a step, a passive one n bytes to each that
    asks. Memory: 2 n for active ranks; for passive ones n, and n for each neighbour that asks at the same time.

    ``exchanges`` counts those of this rank. Raises ValueError for an unknown graph or a negative seed; in `distribute`,
    for a graph that is not connected, and for parameters of 16 bits.
    """

    lockstep = False

    def __init__(self, graph: str | Graph | Array = "ring", seed: int = 0, final_average: bool = True) -> None:
        super().__init__(graph, final_average)
        self.seed, self.exchanges = count("seed", seed, 0), 0

    def take_graph(self, mixing: Mixing, rank: int) -> None:
        """Keep this rank's role and its partners."""
        active, partners = _pairs(mixing)
        self.active, self.partners = active[rank], partners[rank]

    def prepare(self) -> None:
        """Make room for the messages."""
        self._role = (Active if self.active else Passive)(self.messages, self.parameters)

    def _abandon(self) -> None:
        self._role.abandon()

    def on_bucket(self, bucket: Bucket) -> None:
        """Let messages proceed; the parameters are in use."""
        super().on_bucket(bucket)
        with naming_the_dead(self.messages):
            self._role.arrived()

    def before_step(self) -> None:
        """Take what has arrived."""
        self._look()

    def _look(self) -> None:
        with naming_the_dead(self.messages):
            self.exchanges += self._role.look()

    def after_step(self) -> None:
        """Take what has arrived, and ask a neighbour if no answer is due. FloatingPointError as of `Local`."""
        super().after_step()
        check_parameters(self.buckets.list, self.comm.rank)
        self._look()
        if isinstance(self._role, Active) and self.partners and not self._role.asking:
            with naming_the_dead(self.messages):
                self._role.ask(self._draw(self.comm.rank, self.steps, self.partners))

    def _draw(self, rank: int, step: int, partners: Sequence[int]) -> int:
        """The neighbour that `rank` asks in a step."""
        return int(np.random.default_rng([self.seed, rank, step]).choice(partners))

    def finish(self) -> None:
        """Answer until all ranks have finished and all answers have come; then the mean, unless it is not wanted."""
        self._answer_until(self.messages.Ibarrier())
        while self._role.asking:
            self._answer()
        self._answer_until(self.messages.Ibarrier())
        self._role.close()
        self.messages.Barrier()
        super().finish()

    def _answer_until(self, request: Any) -> None:
        while not request.Test():
            self._answer()

    def _answer(self) -> None:
        self._look()
        time.sleep(NAP)

    def pattern(self, size: int) -> Pattern:
        """Parameters from each active rank to the neighbour that it draws, and back, as if answers came at once."""
        active, partners = _pairs(Mixing(self.graph, size))

        @functools.cache
        def drawn(rank: int, step: int) -> int:
            return self._draw(rank, step, partners[rank])

        def actions(rank: int, step: int) -> tuple[Action, ...]:
            if active[rank]:
                return (Post((drawn(rank, step),), PARAMETERS),) if partners[rank] else ()
            asking = tuple(other for other in partners[rank] if drawn(other, step) == rank)
            return (Post(asking, PARAMETERS),) if asking else ()

        return Pattern(actions)

    def settings(self) -> dict[str, Any]:
        """Settings that must be equal on all ranks."""
        return {**super().settings(), "seed": self.seed}


def _pairs(mixing: Mixing) -> tuple[list[bool], list[list[int]]]:
    """Which ranks are active, and the neighbours of each that have the other role."""
    active, linked = roles(mixing), mixing.linked | mixing.linked.T
    return active, [[int(j) for j in np.flatnonzero(row) if active[j] != active[i]] for i, row in enumerate(linked)]
