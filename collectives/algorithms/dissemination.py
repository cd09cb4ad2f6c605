"""Dissemination barrier: in round k, every rank notifies the rank 2^k above it, and waits for the one below.

    round      rank 0     rank 1     rank 2     rank 3     rank 4        (ranks known to have arrived after it)
      0         4, 0       0, 1       1, 2       2, 3       3, 4
      1         2-4, 0     3-4, 0-1   4, 0-2     0-3        1-4
      2         all        all        all        all        all

Modelled as a reduction of one block whose op is the union of sets of ranks: the op is idempotent, so a rank may be
counted twice. Cost ceil(lg p) alpha, no data (Hensgen, Finkel, Manber 1988).
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv_reduce, send


@Rounds
def notices(rank: Ints, size: int) -> Iterator[Round]:
    """Notify every rank, directly or through others, of the arrival of every rank."""
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
