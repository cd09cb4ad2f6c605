"""Recursive doubling: in every round, pairs of ranks exchange all they have, at twice the previous distance.

    round      rank 0    rank 1    rank 2    rank 3
    d = 1        <-- 0, 1 -->        <-- 2, 3 -->
    d = 2        <----- 0-1, 2-3 ----->               (ranks 1 and 3 do the same)

In an all-reduce, both partners fold (lower ranks) op (higher ranks), so that all ranks have the same fold, in rank
order. Cost lg p (alpha + n beta + n gamma). In an all-gather, the partners exchange the blocks of a run of ranks: lg p
alpha + n(p-1)/p beta. If p is not a power of two, both need the two extra rounds of a fold (Thakur, Rabenseifner, Gropp
2005, section 4, on all-gather and all-reduce).
"""

from collections.abc import Iterator

from ..schedules.patterns import doublings, floor_power_of_two, shares, survivors
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv, recv_reduce, send
from .fold import fold, folds


@Rounds
def exchanges(rank: Ints, size: int) -> Iterator[Round]:
    """All-reduce of whole vectors; ``size`` is a power of two."""
    for d in doublings(size):
        yield [send(rank ^ d), recv_reduce(rank ^ d, received_left=rank & d != 0)]


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """Pairs combine their blocks; then the remaining ranks exchange runs of blocks that double in length."""
    target = floor_power_of_two(size)
    paired, partner = rank < 2 * (size - target), rank ^ 1
    stays, leaves = paired & (rank % 2 == 1), paired & (rank % 2 == 0)

    def runs(member: Ints, count: int) -> Iterator[Round]:
        for d in doublings(count):
            keep, get = member // d * d, (member ^ d) // d * d
            own, other = (shares(size, target, g, d) for g in (keep, get))
            yield [send(member ^ d, *own), recv(member ^ d, *other)]

    if folds(size):
        yield [send(partner, rank, 1, when=leaves), recv(partner, partner, 1, when=stays)]
    yield from Rounds(runs).on(survivors(size, target))(rank, size)
    if folds(size):
        yield [send(partner, when=stays), recv(partner, when=leaves)]


register(
    "allreduce",
    "recursive_doubling",
    fold(exchanges),
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: len(doublings(floor_power_of_two(p))) + 2 * folds(p),
    sent=lambda p: len(doublings(floor_power_of_two(p))) + folds(p),
    memory=lambda p: 2 * (p > 1),
    ordered=True,
)


def _longest_runs(size: int, target: int) -> int:
    """Blocks that the first remaining rank sends to the other remaining ranks."""
    return sum(int(shares(size, target, 0, d)[1]) for d in doublings(target))


register(
    "allgather",
    "recursive_doubling",
    allgather,
    doc=__doc__,
    blocks=lambda p: p,
    rounds=lambda p: len(doublings(floor_power_of_two(p))) + 2 * folds(p),
    sent=lambda p: _longest_runs(p, floor_power_of_two(p)) + p * folds(p),
    memory=lambda p: 0,
    divisible=lambda p: p < 3,
)
