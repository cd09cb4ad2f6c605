"""Bruck: ceil(lg p) rounds of one message each, for any p, on blocks that are numbered from the own one.

All-gather: S[i] is block r + i, modulo p. In round d = 1, 2, 4, ..., S[0..d-1] goes to rank r - d, and what comes from
r + d is S[d..2d-1]; the vector is turned at the end.

All-to-all: S[i] is for rank r + i. In round d, all S[i] whose number i has bit d travel d ranks up, packed into one
message, so that each block has gone its i ranks at the end, when S[i] is from rank r - i.

    p = 6           all-gather              all-to-all              (every rank alike, modulo p)
    d = 1           S[0] to r - 1           S[1,3,5] to r + 1
    d = 2           S[0-1] to r - 2         S[2-3] to r + 2
    d = 4           S[0-1] to r - 4         S[4-5] to r + 4

Cost ceil(lg p) alpha + n(p-1)/p beta, and about ceil(lg p)(alpha + n/2 beta): for short blocks, of one length (Bruck,
Ho, Kipnis, Upfal, Weathersby 1997).
"""

from collections.abc import Iterator

from ..patterns import ceil_log2, doublings
from ..registry import register
from ..schedule import INPUT, SCRATCH, VECTOR, Ints, Round, Rounds, copy, recv, send

_TURNED, _OUT, _IN = SCRATCH, SCRATCH + 1, SCRATCH + 2


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """From block r on rank r to all blocks everywhere."""
    if size > 1:
        yield [copy(VECTOR, _TURNED, 0, 1, src_block=rank)]
        for d in doublings(size):
            count = min(d, size - d)
            yield [
                send((rank - d) % size, 0, count, src=_TURNED),
                recv((rank + d) % size, d, count, dst=_TURNED),
            ]
        yield [
            copy(_TURNED, VECTOR, rank, size - rank, src_block=0),
            copy(_TURNED, VECTOR, 0, rank, src_block=size - rank),
        ]


def _travelling(size: int, d: int) -> list[tuple[int, int]]:
    """The runs, as (first, length), of the numbers below ``size`` that have bit ``d``."""
    return [(first, min(d, size - first)) for first in range(d, size, 2 * d)]


@Rounds
def alltoall(rank: Ints, size: int) -> Iterator[Round]:
    """Block j of rank i becomes block i of rank j."""
    yield [
        copy(INPUT, _TURNED, 0, size - rank, src_block=rank),
        copy(INPUT, _TURNED, size - rank, rank, src_block=0),
    ]
    for d in doublings(size):
        runs = _travelling(size, d)
        places = [sum(length for _, length in runs[:i]) for i in range(len(runs) + 1)]
        packed = list(zip(runs, places, strict=False))
        yield [copy(_TURNED, _OUT, at, length, src_block=first) for (first, length), at in packed]
        yield [
            send((rank + d) % size, 0, places[-1], src=_OUT),
            recv((rank - d) % size, 0, places[-1], dst=_IN),
            *(copy(_IN, _TURNED, first, length, src_block=at) for (first, length), at in packed),
        ]
    yield [copy(_TURNED, VECTOR, (rank - i) % size, 1, src_block=i) for i in range(size)]


register(
    "allgather",
    "bruck",
    allgather,
    doc=__doc__,
    blocks=lambda p: p,
    rounds=ceil_log2,
    sent=lambda p: p - 1,
    memory=lambda p: p if p > 1 else 0,
    uneven=False,
)
register(
    "alltoall",
    "bruck",
    alltoall,
    doc=__doc__,
    blocks=lambda p: p,
    rounds=ceil_log2,
    sent=lambda p: sum(length for d in doublings(p) for _, length in _travelling(p, d)),
    memory=lambda p: 3 * p if p > 1 else 1,
    uneven=False,
)
