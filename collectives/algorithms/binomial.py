"""Binomial tree: the number of active ranks doubles in each round of a broadcast, and halves in a reduction.

Ranks are numbered from the root: rank r has position v = (r - root) mod p. Position v has a child v + d for every power
of two d below the lowest set bit of v. The subtree of that child consists of the positions v + d .. v + 2d - 1.

    round    bcast, scatter: position 0   1   2   3        reduce, gather: the same edges in reverse
    d = 2                    0 --------> 2
    d = 1                    0 -> 1      2 -> 3

Broadcast and reduce send whole vectors: ceil(lg p) rounds, ceil(lg p) (alpha + n beta), and n gamma for each round of a
reduction. A scatter sends each child the blocks of the child's subtree, and a gather receives these blocks: ceil(lg p)
alpha + n(p-1)/p beta (Thakur, Rabenseifner, Gropp 2005, section 4).
"""

from collections.abc import Iterator

import numpy as np

from ..schedules.patterns import ceil_log2, doublings
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv, recv_reduce, send, wrapped


def _edge(rank: Ints, size: int, root: int, d: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """For the edges of length d: whether a rank is the child, whether the parent, both peers, the child's blocks."""
    position = (rank - root) % size
    child = position % (2 * d) == d
    parent = (position % (2 * d) == 0) & (position + d < size)
    return child, parent, (rank - d) % size, (rank + d) % size, np.clip(size - position - d * parent, 0, d)


@Rounds
def bcast(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send the whole vector from the root to every rank."""
    for d in reversed(doublings(size)):
        child, parent, up, down, _ = _edge(rank, size, root, d)
        yield [recv(up, when=child), send(down, when=parent)]


@Rounds
def reduce(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Reduce the whole vector to the root; operands are in rank order for root 0 only."""
    for d in doublings(size):
        child, parent, up, down, _ = _edge(rank, size, root, d)
        yield [send(up, when=child), recv_reduce(down, received_left=down < rank, when=parent)]


@Rounds
def scatter(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send block r from the root to rank r."""
    for d in reversed(doublings(size)):
        child, parent, up, down, count = _edge(rank, size, root, d)
        yield [
            *wrapped(recv(up, rank, count, when=child), size),
            *wrapped(send(down, rank + d, count, when=parent), size),
        ]


@Rounds
def gather(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send block r from rank r to the root."""
    for d in doublings(size):
        child, parent, up, down, count = _edge(rank, size, root, d)
        yield [
            *wrapped(send(up, rank, count, when=child), size),
            *wrapped(recv(down, rank + d, count, when=parent), size),
        ]


@Rounds
def reduce_in_order(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Ranks below the root reduce to rank 0, the other ranks to the root; the root then combines both results."""
    if root:
        yield from reduce.on(range(root))(rank, size)
    yield from reduce.on(range(root, size))(rank, size)
    if root:
        yield [send(root, when=rank == 0), recv_reduce(0, received_left=True, when=rank == root)]


def gathered(size: int, root: int = 0) -> int:
    """Blocks that the busiest rank sends: the subtree of position h or h/2, h the largest power of two below size."""
    half = 1 << ceil_log2(size) >> 1
    return max(size - half, half >> 1) if size > 1 else 0


def _in_order_rounds(size: int, root: int = 0) -> int:
    longest = max(ceil_log2(size - root), ceil_log2(max(root, 1)))
    return longest + 1 if root else longest


def _in_order_memory(size: int, root: int = 0) -> int:
    """Staging for two rounds, and a scratch vector if a rank other than the root receives (rank 0, or position 2)."""
    return 2 * (size > 1) + (root > 1 or size - root > 3)


def _whole_subtrees(size: int, root: int = 0) -> int:
    """A scratch vector if a rank other than the root holds blocks of other ranks for some rounds."""
    return size * (size > 3)


def _single(size: int) -> bool:
    """Whether every subtree below the root has one rank, so that every step handles one block."""
    return size < 4


_SUMMARIES = {
    "bcast": "Binomial: the number of ranks that have the vector doubles in each round.",
    "reduce": "Binomial: the number of ranks that have partial results halves in each round.",
    "scatter": "Binomial: each rank passes the blocks of half of its subtree on in each round.",
    "gather": "Binomial: each rank sends the blocks of its subtree to its parent in the tree.",
}
for _collective, _generator, _blocks, _sent, _memory in (
    ("bcast", bcast, lambda p: 1, lambda p, root=0: ceil_log2(p), lambda p, root=0: 0),
    ("reduce", reduce, lambda p: 1, lambda p, root=0: int(p > 1), lambda p, root=0: 2 * (p > 1) + (p > 3)),
    ("scatter", scatter, lambda p: p, lambda p, root=0: p - 1, _whole_subtrees),
    ("gather", gather, lambda p: p, gathered, _whole_subtrees),
):
    register(
        _collective,
        "binomial",
        _generator,
        doc=_SUMMARIES[_collective],
        blocks=_blocks,
        rounds=lambda p, root=0: ceil_log2(p),
        sent=_sent,
        memory=_memory,
        divisible=None if _collective in ("bcast", "reduce") else _single,
        uneven=_collective in ("bcast", "reduce"),
        order="block" if _collective in ("bcast", "reduce") else "",
    )
register(
    "reduce",
    "binomial_in_order",
    reduce_in_order,
    doc="Binomial in rank order: the ranks below the root reduce among themselves, the others to the root.",
    blocks=lambda p: 1,
    rounds=_in_order_rounds,
    sent=lambda p, root=0: int(p > 1),
    memory=_in_order_memory,
    ordered=True,
)
