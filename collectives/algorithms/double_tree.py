r"""Double binary tree: two trees, each with half of the vector; no rank is an inner node of both.

Reduce to both roots, then broadcast, in a pipeline of segments. In one binary tree the leaves, half of the ranks, never
send downwards. The second tree is the first one mirrored (p even) or shifted by one rank (p odd), so that leaves of one
tree are inner nodes of the other, and all ranks send and receive about equally much.

    p = 6        block 0: 0            block 1: 5          the round of level l: positions with lowest
                           \                  /            set bit 2^l send to their parent (up), or
                            4                1             receive from it (down)
                           / \              / \
                          2   5            0   3
                         / \                  / \
                        1   3                2   4

Cost: 2 ceil(lg p) rounds for one segment; about 2n beta with k = sqrt(n beta lg p / (2 alpha)) segments (Sanders,
Speck, Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan").
"""

from collections.abc import Callable, Iterator

import numpy as np

from ..schedules.patterns import ceil_log2, in_order_level, in_order_tree
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, Step, recv, recv_reduce, send


def _position(rank: Ints, size: int, tree: int) -> Ints:
    """The position of ``rank`` in tree number ``tree``."""
    if tree == 0:
        return rank
    return (rank - 1) % size if size % 2 else size - 1 - rank


def _rank(position: Ints, size: int, tree: int) -> Ints:
    """The rank at ``position`` in tree number ``tree``; meaningless for position -1."""
    if tree == 0:
        return position
    return (position + 1) % size if size % 2 else size - 1 - position


def _levels(rank: Ints, size: int, edge: Callable[..., Step], back: Callable[..., Step]) -> list[list[Step]]:
    """One round per level, from the leaves up: the edges from the nodes of that level to their parents, in both trees.

    ``edge(rank, peer, block, when)`` makes the child's step, ``back`` the parent's.
    """
    rounds: list[list[Step]] = [[] for _ in range(ceil_log2(size))]
    for block in range(2):
        tree = in_order_tree(_position(rank, size, block), size)
        parent = _rank(tree.parent, size, block)
        for level, steps in enumerate(rounds):
            steps.append(edge(rank, parent, block, (tree.level == level) & (tree.parent >= 0)))
            for child in tree.children:
                here = (in_order_level(np.maximum(child, 1), size) == level) & (child >= 0)
                steps.append(back(rank, _rank(child, size, block), block, here))
    return rounds


@Rounds
def reduce_to_roots(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce each block to the root of its tree."""
    yield from _levels(
        rank,
        size,
        lambda rank, parent, block, when: send(parent, block, 1, when=when),
        lambda rank, child, block, when: recv_reduce(child, block, 1, received_left=child < rank, when=when),
    )


@Rounds
def broadcast_from_roots(rank: Ints, size: int) -> Iterator[Round]:
    """Broadcast each block from the root of its tree, along the same edges."""
    yield from reversed(
        _levels(
            rank,
            size,
            lambda rank, parent, block, when: recv(parent, block, 1, when=when),
            lambda rank, child, block, when: send(child, block, 1, when=when),
        )
    )


register(
    "allreduce",
    "double_tree",
    reduce_to_roots + broadcast_from_roots,
    doc=__doc__,
    blocks=lambda p: 2,
    rounds=lambda p: 2 * ceil_log2(p),
    sent=lambda p: min(4, p) if p > 1 else 0,
    memory=lambda p: 2 * min(2, p // 2),
)
