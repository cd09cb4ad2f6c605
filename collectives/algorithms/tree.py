"""Binomial tree: reduce to rank 0, then broadcast.

In round d = 1, 2, 4, ... of the reduction, odd multiples of d send to the rank d below and have no more to send. The
broadcast uses the same edges in reverse. Each subtree is a run of consecutive ranks, so rank order is kept.

    round      rank 0   rank 1   rank 2   rank 3
    d = 1        + <-     1        + <-     3
    d = 2        + <----------- 2,3
    d = 2        all ----------->
    d = 1        all ->            all ->

Cost 2 ceil(lg p) (alpha + n beta) + ceil(lg p) n gamma (Thakur, Rabenseifner, Gropp 2005, section 4, on reduce).
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv, recv_reduce, send


@Rounds
def reduce_to_root(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce the whole vector to rank 0."""
    for d in doublings(size):
        yield [
            send(rank - d, when=rank % (2 * d) == d),
            recv_reduce(rank + d, received_left=False, when=(rank % (2 * d) == 0) & (rank + d < size)),
        ]


@Rounds
def broadcast(rank: Ints, size: int) -> Iterator[Round]:
    """Send the whole vector from rank 0 to every rank."""
    for d in reversed(doublings(size)):
        yield [
            recv(rank - d, when=rank % (2 * d) == d),
            send(rank + d, when=(rank % (2 * d) == 0) & (rank + d < size)),
        ]


register(
    "allreduce",
    "tree",
    reduce_to_root + broadcast,
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: 2 * ceil_log2(p),
    sent=ceil_log2,
    memory=lambda p: 2 * (p > 1),
    ordered=True,
)
