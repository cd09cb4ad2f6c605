"""Neighbour exchange: a rank exchanges what it received last with its two neighbours in turn.

All-gather with half the rounds of a ring, for an even number of ranks. Ranks 2q and 2q + 1 exchange their blocks, which
are pair q. After that a message is a pair of blocks: in round t a rank sends the pair that it received in round t - 1.

    round      rank 0       rank 1       rank 2       rank 3       rank 4       rank 5
      0          <--- 0, 1 --->            <--- 2, 3 --->            <--- 4, 5 --->
      1                       <--- 0-1, 2-3 --->        <--- 2-3, 4-5 --->      and 5 with 0
      2          <- 4-5, 2-3 ->            <- 0-1, 4-5 ->            <- 2-3, 0-1 ->

Cost p/2 alpha + n(p-1)/p beta. An odd number of ranks passes blocks around a ring (Chen, Zhang, Zhang, Zheng 2005,
"Performance evaluation of allgather algorithms on terascale Linux cluster with fast Ethernet").
"""

from collections.abc import Iterator

from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv, send
from .ring import allgather as around_the_ring


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """Gather block r of every rank r on all ranks."""
    if size % 2:
        yield from around_the_ring(rank, size)
        return
    side = 1 - rank % 2 * 2  # from an even rank its partner of round 0 is on the right, from an odd one on the left

    def pair(t: int) -> Ints:
        """The first block that round t brings; in round 0, of the rank's own pair."""
        distance = t // 2 if t % 2 == 0 else -(t + 1) // 2
        return (rank // 2 + side * distance) * 2 % size

    yield [send(rank ^ 1, rank, 1), recv(rank ^ 1, rank ^ 1, 1)]
    for t in range(1, size // 2):
        partner = (rank - side if t % 2 else rank + side) % size
        yield [send(partner, pair(t - 1), 2), recv(partner, pair(t), 2)]


register(
    "allgather",
    "neighbor_exchange",
    allgather,
    doc=__doc__,
    blocks=lambda p: p,
    rounds=lambda p: p - 1 if p % 2 else p // 2,
    sent=lambda p: p - 1,
    memory=lambda p: 0,
    divisible=lambda p: p % 2 == 1 or p == 2,
)
