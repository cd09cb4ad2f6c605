"""Dissemination barrier: in round k, everybody tells the rank 2^k above, and hears from the one 2^k below.

    round      rank 0     rank 1     rank 2     rank 3     rank 4        (ranks known to have arrived)
      0         4, 0       0, 1       1, 2       2, 3       3, 4
      1         2-4, 0     3-4, 0-1   4, 0-2     0-3        1-4
      2         all        all        all        all        all

Modelled as a reduction of one block whose op is idempotent (a union of ranks): it does no harm that some are counted
twice. Cost ceil(lg p) alpha (Hensgen, Finkel, Manber 1988).
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv_reduce, send


@Rounds
def notices(rank: Ints, size: int) -> Iterator[Round]:
    """Everybody hears, directly or not, from everybody."""
    for d in doublings(size):
        source = (rank - d) % size
        yield [send((rank + d) % size), recv_reduce(source, received_left=source < rank)]


register(
    "barrier",
    "dissemination",
    notices,
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=ceil_log2,
    sent=ceil_log2,
    memory=lambda p: 2 * (p > 1),
)
