"""Linear: every rank sends each block directly to the rank that needs it, in one round.

    p = 4         gather to 1       scatter from 1     all-to-all, reduce-scatter
    rank 0        0 -> 1                               0 -> 1, 2, 3
    rank 1        <- 0, 2, 3        1 -> 0, 2, 3       1 -> 2, 3, 0
    rank 2        2 -> 1                               2 -> 3, 0, 1
    rank 3        3 -> 1                               3 -> 0, 1, 2

No byte is sent twice, and no rank stores blocks for others. The busiest rank handles p - 1 messages: between alpha and
(p-1) alpha, depending on how far they overlap, + n(p-1)/p beta. In a reduce-scatter, every rank folds the arriving
copies of its block in rank order, which adds n(p-1)/p gamma.
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2
from ..schedules.registry import register
from ..schedules.schedule import INPUT, VECTOR, Ints, Round, Rounds, Series, Step, copy, each, recv, send
from . import circulant
from .naive import fold_arrivals


@Rounds
def gather(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send block r from rank r to the root."""
    arrivals = each(range(size), lambda r: [recv(r, r, 1, when=(rank == root) & (r != root))])
    yield [send(root, rank, 1, when=rank != root), arrivals]


@Rounds
def scatter(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send block r from the root to rank r."""
    sends = each(range(size), lambda r: [send(r, r, 1, when=(rank == root) & (r != root))])
    yield [recv(root, rank, 1, when=rank != root), sends]


@Rounds
def alltoall(rank: Ints, size: int) -> Iterator[Round]:
    """Send block j of rank i to block i of rank j, for all pairs in one round."""

    def pair(shift: Ints) -> list[Step]:
        to, source = (rank + shift) % size, (rank - shift) % size
        return [recv(source, source, 1), send(to, to, 1, src=INPUT)]

    yield [copy(INPUT, VECTOR, rank, 1), each(range(1, size), pair)]


def _to_owners(rank: Ints, size: int, src: int) -> Series:
    """Send every block except the rank's own to the rank that folds it."""

    def one(shift: Ints) -> list[Step]:
        to = (rank + shift) % size
        return [send(to, to, 1, src=src)]

    return each(range(1, size), one)


@Rounds
def fold_blocks(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce-scatter like :func:`reduce_scatter`, but in VECTOR: input and result may be the same memory."""
    yield [_to_owners(rank, size, VECTOR), *fold_arrivals(size, rank, rank, 1)]


@Rounds
def reduce(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Every rank folds one block and sends the result to the root."""
    yield from fold_blocks(rank, size)
    yield from gather(rank, size, root=root)


@Rounds
def reduce_scatter(rank: Ints, size: int) -> Iterator[Round]:
    """Every rank sends block j to rank j, which folds the copies in rank order."""
    yield [_to_owners(rank, size, INPUT), *fold_arrivals(size, rank, rank, 1, low=VECTOR, own=INPUT)]


for _collective, _generator in (("gather", gather), ("scatter", scatter), ("alltoall", alltoall)):
    register(
        _collective,
        "linear",
        _generator,
        doc=__doc__,
        blocks=lambda p: p,
        rounds=lambda p, root=0: int(p > 1),
        sent=(lambda p, root=0: int(p > 1)) if _collective == "gather" else (lambda p, root=0: p - 1),
        memory=lambda p, root=0: 0,
        divisible=lambda p: True,
    )
register(
    "reduce_scatter",
    "linear",
    reduce_scatter,
    doc="Linear: everybody sends block j straight to rank j, which folds in rank order.",
    blocks=lambda p: p,
    rounds=lambda p: int(p > 1),
    sent=lambda p: p - 1,
    memory=lambda p: 2 * (p - 1),
    divisible=lambda p: True,
    ordered=True,
    linear=True,
)
register(
    "allreduce",
    "linear",
    fold_blocks + circulant.allgather,
    doc="Linear: everybody folds a block in rank order, as in the reduce-scatter; then a circulant all-gather.",
    blocks=lambda p: p,
    rounds=lambda p: int(p > 1) + ceil_log2(p),
    sent=lambda p: 2 * (p - 1),
    memory=lambda p: 3 * p - 4 if p > 1 else 0,
    ordered=True,
    linear=True,
)
register(
    "reduce",
    "linear",
    reduce,
    doc="Linear: everybody folds a block in rank order, as in the reduce-scatter, and sends it to the root.",
    blocks=lambda p: p,
    rounds=lambda p, root=0: 2 * int(p > 1),
    sent=lambda p, root=0: p if p > 1 else 0,
    memory=lambda p, root=0: 4 * (p - 1),
    ordered=True,
    linear=True,
)
