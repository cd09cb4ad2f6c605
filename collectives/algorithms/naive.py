"""Naive: all send to one driver, which reduces and sends back.

    round      rank 0 (driver)                rank 1        rank 2
      0      ((x0 op x1) op x2) ...  <-      send x1       send x2
      1      send the result  ->             receive       receive

Cost 2(p-1)(alpha + n beta) + (p-1) n gamma, all at the driver: never the fastest, the baseline to compare with.
Every element is folded in rank order, so this is also the plainest deterministic fold.
"""

from collections.abc import Iterator

from ..registry import register
from ..schedule import Ints, Round, Rounds, recv, recv_reduce, send


@Rounds
def gather_and_return(rank: Ints, size: int) -> Iterator[Round]:
    """Whole vectors, one block."""
    driver, others = rank == 0, range(1, size)
    yield [send(0, when=rank > 0)] + [recv_reduce(r, received_left=False, when=driver) for r in others]
    yield [recv(0, when=rank > 0)] + [send(r, when=driver) for r in others]


register(
    "allreduce",
    "naive",
    gather_and_return,
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: 2 if p > 1 else 0,
    sent=lambda p: p - 1,
    ordered=True,
    linear=True,
)
