"""Folding: runs an algorithm that needs a certain number of ranks (such as a power of two) on any number of ranks.

With rem = p - target, the first 2 rem ranks form pairs. The even rank of a pair sends its vector to the odd rank, waits
while the remaining ranks run the inner algorithm, and receives the result. Pairs are neighbours: rank order is kept.

    p = 6, target = 4        rank 0    rank 1    rank 2    rank 3    rank 4    rank 5
      before                 to 1 ->   +         to 3 ->   +
      inner, on 4 ranks                as 0                as 1      as 2      as 3
      after                            <- to 0             <- to 2

Cost: 2 rounds and up to 2n beta + n gamma in addition to the inner algorithm (Thakur, Rabenseifner, Gropp 2005,
section 4, on all-reduce).
"""

from collections.abc import Callable, Iterator

from ..schedules.patterns import floor_power_of_two, survivors
from ..schedules.schedule import Ints, Round, Rounds, recv, recv_reduce, send


def fold(inner: Rounds, target: Callable[[int], int] = floor_power_of_two) -> Rounds:
    """Run ``inner`` on ``target(p)`` of the p ranks, the other ranks folded into these; p/2 <= target(p) <= p."""

    def folded(rank: Ints, size: int) -> Iterator[Round]:
        rem = size - target(size)
        paired = rank < 2 * rem
        stays, leaves = paired & (rank % 2 == 1), paired & (rank % 2 == 0)
        partner = rank ^ 1
        if rem:
            yield [send(partner, when=leaves), recv_reduce(partner, received_left=True, when=stays)]
        yield from inner.on(survivors(size, size - rem))(rank, size)
        if rem:
            yield [send(partner, when=stays), recv(partner, when=leaves)]

    return Rounds(folded)


def folds(size: int) -> bool:
    """Whether ``size`` is not a power of two, so that :func:`fold` adds two rounds."""
    return size != floor_power_of_two(size)
