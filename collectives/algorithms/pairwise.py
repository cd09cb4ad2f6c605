"""Pairwise: in round t, every rank sends to the rank t above it and receives from the rank t below it.

    p = 4         rank 0       rank 1       rank 2       rank 3
    round 0      1 out, 3 in  2, 0         3, 1         0, 2
    round 1      2 out, 2 in  3, 3         0, 0         1, 1
    round 2      3 out, 1 in  0, 2         1, 3         2, 0

Every rank sends one message and receives one at a time: (p-1) alpha + n(p-1)/p beta. For long blocks (Thakur,
Rabenseifner, Gropp 2005, section 4, on all-to-all).
"""

from collections.abc import Iterator

from ..schedules.registry import register
from ..schedules.schedule import INPUT, VECTOR, Ints, Round, Rounds, Step, copy, each, recv, send


@Rounds
def alltoall(rank: Ints, size: int) -> Iterator[Round]:
    """Send block j of rank i to block i of rank j."""
    yield [copy(INPUT, VECTOR, rank, 1)]

    def pair(shift: Ints) -> list[Step]:
        to, source = (rank + shift) % size, (rank - shift) % size
        return [send(to, to, 1, src=INPUT), recv(source, source, 1)]

    yield each(range(1, size), pair)


register(
    "alltoall",
    "pairwise",
    alltoall,
    doc=__doc__,
    blocks=lambda p: p,
    rounds=lambda p: p - 1,
    sent=lambda p: p - 1,
    memory=lambda p: 0,
    divisible=lambda p: True,
)
