"""Bruck: ceil(lg p) rounds of one message each, for any p; a rank numbers the blocks from its own block on.

All-gather: on rank r, S[i] is block (r + i) mod p. In round d = 1, 2, 4, ..., S[0..d-1] is sent to rank r - d, and the
message from rank r + d becomes S[d..2d-1]. At the end S is rotated into the order of the ranks.

All-to-all: S[i] on rank r is the block for rank r + i. In round d, all S[i] whose number i has bit d set are packed in
one message to rank r + d. At the end each block has moved i ranks up, so that S[i] on rank r comes from rank r - i.

    p = 6           all-gather              all-to-all              (the same on every rank r, modulo p)
    d = 1           S[0] to r - 1           S[1,3,5] to r + 1
    d = 2           S[0-1] to r - 2         S[2-3] to r + 2
    d = 4           S[0-1] to r - 4         S[4-5] to r + 4

Cost of the all-gather ceil(lg p) alpha + n(p-1)/p beta, of the all-to-all about ceil(lg p)(alpha + n/2 beta). For short
blocks of equal length (Bruck, Ho, Kipnis, Upfal, Weathersby 1997).
"""

from collections.abc import Iterator

import numpy as np

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import INPUT, SCRATCH, VECTOR, Ints, Round, Rounds, Series, Step, copy, each, recv, send

_TURNED, _OUT, _IN = SCRATCH, SCRATCH + 1, SCRATCH + 2


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """Gather block r of every rank r on all ranks."""
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


def _travelling(size: int, d: int) -> int:
    """How many of the numbers below ``size`` have bit ``d`` set."""
    return size // (2 * d) * d + max(0, size % (2 * d) - d)


def _packed(size: int, d: int, source: int, target: int, out: bool) -> Series:
    """Copies that pack the blocks whose number has bit ``d`` set (``out``), or that unpack them (not ``out``)."""

    def run(i: Ints) -> list[Step]:
        first, at = (2 * i + 1) * d, i * d  # each run has d numbers, the last one perhaps fewer
        to, start = (at, first) if out else (first, at)
        return [copy(source, target, to, np.minimum(d, size - first), src_block=start)]

    return each(range(-(-(size - d) // (2 * d))), run)


@Rounds
def alltoall(rank: Ints, size: int) -> Iterator[Round]:
    """Send block j of rank i to block i of rank j."""
    yield [
        copy(INPUT, _TURNED, 0, size - rank, src_block=rank),
        copy(INPUT, _TURNED, size - rank, rank, src_block=0),
    ]
    for d in doublings(size):
        count = _travelling(size, d)
        yield [_packed(size, d, _TURNED, _OUT, True)]
        yield [
            send((rank + d) % size, 0, count, src=_OUT),
            recv((rank - d) % size, 0, count, dst=_IN),
            _packed(size, d, _IN, _TURNED, False),
        ]
    yield [each(range(size), lambda i: [copy(_TURNED, VECTOR, (rank - i) % size, 1, src_block=i)])]


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
    sent=lambda p: sum(_travelling(p, d) for d in doublings(p)),
    memory=lambda p: 3 * p if p > 1 else 1,
    uneven=False,
)
