"""Scans: rank r ends with the fold of the vectors of ranks 0 to r (exclusive: 0 to r - 1), in rank order.

    linear        0 -> 1    then 1 -> 2    then 2 -> 3 ...               each sends its result on
    doubling      r -> r + 1, all at once; then r -> r + 2; r -> r + 4   after r -> r + d: fold of r-2d+1 .. r

Exclusive scans first shift all vectors up by one rank, then scan on the ranks above 0. An inclusive scan by doubling
costs ceil(lg p)(alpha + n beta + n gamma) (Hillis, Steele 1986). A linear scan costs (p-1)(alpha + n beta + n gamma),
but its segments form a pipeline: about n beta for long vectors.
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import SCRATCH, VECTOR, Ints, Round, Rounds, Step, copy, each, recv, recv_reduce, send


@Rounds
def chain(rank: Ints, size: int) -> Iterator[Round]:
    """Scan one rank after the other."""

    def link(r: Ints) -> list[Step]:
        return [send(r, when=rank == r - 1), recv_reduce(r - 1, received_left=True, when=rank == r)]

    yield each(range(1, size), link)


@Rounds
def doubling(rank: Ints, size: int) -> Iterator[Round]:
    """Scan on all ranks together; the distance doubles in every round."""
    for d in doublings(size):
        yield [
            send(rank + d, when=rank + d < size),
            recv_reduce(rank - d, received_left=True, when=rank >= d),
        ]


def exclusive(inclusive: Rounds) -> Rounds:
    """The exclusive scan: shift the vectors up by one rank, then run ``inclusive`` on the ranks above 0."""

    def shifted(rank: Ints, size: int) -> Iterator[Round]:
        if size == 1:
            return
        yield [
            send(rank + 1, when=rank + 1 < size),
            recv(rank - 1, dst=SCRATCH, when=rank > 0),  # in place, VECTOR is being sent
            copy(SCRATCH, VECTOR, when=rank > 0),
        ]
        yield from inclusive.on(range(1, size))(rank, size)

    return Rounds(shifted)


register(
    "scan",
    "recursive_doubling",
    doubling,
    doc="Recursive doubling: in round d, rank r hands all it has to rank r + d.",
    blocks=lambda p: 1,
    rounds=ceil_log2,
    sent=ceil_log2,
    memory=lambda p: 2 * (p > 1),
    ordered=True,
)
register(
    "exscan",
    "recursive_doubling",
    exclusive(doubling),
    doc="Recursive doubling: vectors move one rank up, then rank r hands all it has to rank r + d.",
    blocks=lambda p: 1,
    rounds=lambda p: 1 + ceil_log2(p - 1) if p > 1 else 0,
    sent=lambda p: 1 + ceil_log2(p - 1) if p > 1 else 0,
    memory=lambda p: min(p - 1, 1) + 2 * (p > 2),
    ordered=True,
)
register(
    "scan",
    "linear",
    chain,
    doc="Linear: every rank adds its vector to what comes from below, and hands the result up.",
    blocks=lambda p: 1,
    rounds=lambda p: p - 1,
    sent=lambda p: int(p > 1),
    memory=lambda p: 2 * (p > 1),
    ordered=True,
    linear=True,
)
register(
    "exscan",
    "linear",
    exclusive(chain),
    doc="Linear: vectors move one rank up, then every rank adds its own to what comes from below.",
    blocks=lambda p: 1,
    rounds=lambda p: p - 1,
    sent=lambda p: min(p - 1, 2),
    memory=lambda p: min(p - 1, 1) + 2 * (p > 2),
    ordered=True,
    linear=True,
)
