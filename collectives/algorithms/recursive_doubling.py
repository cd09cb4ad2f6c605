"""Recursive doubling: in every round, pairs at twice the distance exchange all they have.

    round      rank 0    rank 1    rank 2    rank 3
    d = 1        <-- 0, 1 -->        <-- 2, 3 -->
    d = 2        <----- 0-1, 2-3 ----->               (and ranks 1, 3 likewise)

Both partners fold lower ranks op higher ranks, so all hold the same fold, in rank order. Cost lg p (alpha + n beta +
n gamma), with the two extra rounds of a fold where p is no power of two (Thakur, Rabenseifner, Gropp 2005,
section 4.4).
"""

from collections.abc import Iterator

from ..patterns import doublings, floor_power_of_two
from ..registry import register
from ..schedule import Ints, Round, Rounds, recv_reduce, send
from .fold import fold, folds


@Rounds
def exchanges(rank: Ints, size: int) -> Iterator[Round]:
    """All-reduce of whole vectors on a power of two of ranks."""
    for d in doublings(size):
        yield [send(rank ^ d), recv_reduce(rank ^ d, received_left=rank & d != 0)]


register(
    "allreduce",
    "recursive_doubling",
    fold(exchanges),
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: len(doublings(floor_power_of_two(p))) + 2 * folds(p),
    sent=lambda p: len(doublings(floor_power_of_two(p))) + folds(p),
    ordered=True,
)
