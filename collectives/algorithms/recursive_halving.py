"""Recursive halving and doubling (Rabenseifner): exchange halves, quarters, ..., then gather them in reverse.

Reduce-scatter, then all-gather, on p blocks, p a power of two. Partners at distance d = 1, 2, 4, ... split the range of
blocks that both hold: the lower rank keeps the lower half, the higher rank the upper half. The distance grows while the
range shrinks, so that every fold covers a run of consecutive ranks: rank order is kept.

    round      rank 0        rank 1        rank 2        rank 3        (blocks that the rank keeps)
    d = 1      0-1           2-3           0-1           2-3
    d = 2      0             2             1             3
    d = 2      0-1           2-3           0-1           2-3
    d = 1      0-3           0-3           0-3           0-3

Cost 2 lg p alpha + 2n(p-1)/p beta + n(p-1)/p gamma; if p is not a power of two, a fold adds 2 rounds and up to 2n beta
(Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005, section 4, on all-reduce). The first half is registered as a
reduce-scatter too, with the ranks permuted so that rank r ends with block r.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..schedules.patterns import bit_reversed, doublings, floor_power_of_two, shares, survivors
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, Step, mapped, recv, recv_reduce, send
from .fold import fold, folds


@Rounds
def reduce_scatter(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce to rank r the block whose number is r with its bits reversed."""
    first, width = 0 * rank, size
    for d in doublings(size):
        width //= 2
        upper = rank // d % 2
        keep, give = first + upper * width, first + (1 - upper) * width
        yield [send(rank ^ d, give, width), recv_reduce(rank ^ d, keep, width, received_left=upper == 1)]
        first = keep


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """All-gather by the exchanges of :func:`reduce_scatter` in reverse, from one block on each rank."""
    first, width = bit_reversed(rank, size), 1
    for d in reversed(doublings(size)):
        upper = rank // d % 2
        yield [send(rank ^ d, first, width), recv(rank ^ d, first + (1 - 2 * upper) * width, width)]
        first, width = first - upper * width, 2 * width


@Rounds
def reduce_scatter_by_rank(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce block r to rank r, for any ``size``; a pair of folded ranks handles its two blocks together."""
    target = floor_power_of_two(size)
    paired, partner = rank < 2 * (size - target), rank ^ 1
    stays, leaves = paired & (rank % 2 == 1), paired & (rank % 2 == 0)
    if folds(size):
        yield [send(partner, when=leaves), recv_reduce(partner, received_left=True, when=stays)]
    turned = survivors(size, target)[bit_reversed(np.arange(target), target)]

    def shared(step: Step) -> Step:
        first, count = shares(size, target, step.block, step.nblocks)
        return replace(step, block=first, nblocks=count)

    for steps in reduce_scatter.on(turned)(rank, size):
        yield mapped(steps, shared)
    if folds(size):
        yield [send(partner, partner, 1, when=stays), recv(partner, rank, 1, when=leaves)]


register(
    "allreduce",
    "recursive_halving",
    fold(reduce_scatter + allgather),
    doc=__doc__,
    blocks=floor_power_of_two,
    rounds=lambda p: 2 * len(doublings(floor_power_of_two(p))) + 2 * folds(p),
    sent=lambda p: 2 * (floor_power_of_two(p) - 1) + folds(p) * floor_power_of_two(p),
    memory=lambda p: floor_power_of_two(p) * (1 + folds(p)) if p > 1 else 0,
    ordered=True,
)
register(
    "reduce_scatter",
    "recursive_halving",
    reduce_scatter_by_rank,
    doc="Recursive halving: pairs exchange halves, quarters, ... of the vector, until each rank has its block.",
    blocks=lambda p: p,
    rounds=lambda p: len(doublings(floor_power_of_two(p))) + 2 * folds(p),
    sent=lambda p: p - 1 + folds(p),
    memory=lambda p: p * (2 + folds(p)) if p > 2 else 2 * (p - 1),
    divisible=lambda p: p < 3,
)
