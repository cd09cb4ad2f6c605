"""Recursive multiplying: groups of k exchange whole vectors, for each factor k of p.

Recursive doubling generalised to any factors: in the round of factor k, each of the k ranks base, base + d, ..., base +
(k-1) d sends all it has to the k - 1 others; then d is multiplied by k. Every rank folds the k vectors in rank order:
arriving vectors first go to scratch memory, and all ranks compute the same fold.

    p = 6      ranks that exchange
    k = 3      {0, 1, 2}   {3, 4, 5}
    k = 2      {0, 3}   {1, 4}   {2, 5}

Cost: the sum over k of alpha + (k-1)(n beta + n gamma), if the sends of a round overlap. This takes fewer rounds than
doubling if network or cores handle several messages at once. A p with a prime factor above 7 is folded to the next
lower number without one (Ruefenacht, Bull, Booth 2017, "Generalisation of recursive doubling for AllReduce").
"""

from collections.abc import Iterator

import numpy as np

from ..schedules.patterns import factors, largest_smooth
from ..schedules.registry import register
from ..schedules.schedule import SCRATCH, VECTOR, Ints, Round, Rounds, Step, recv, reduce, send
from .fold import fold


@Rounds
def exchanges(rank: Ints, size: int) -> Iterator[Round]:
    """All-reduce of whole vectors for any ``size``; fast if the factors of ``size`` are small."""
    d = 1
    for k in factors(size):
        me = rank // d % k
        others = [(me + shift) % k for shift in range(1, k)]
        peers = [rank + (j - me) * d for j in others]
        sends = [send(peer) for peer in peers]
        yield sends + [recv(peer, dst=_slot(j, me)) for peer, j in zip(peers, others, strict=True)] + _fold_all(k, me)
        d *= k


def _slot(j: Ints, me: Ints) -> Ints:
    """The buffer that holds the contribution of group member ``j`` on member ``me``."""
    return np.where(j == me, VECTOR, SCRATCH + j - (j > me))


def _partial(j: int, me: Ints) -> Ints:
    """The buffer that holds the fold of members 0..j: the slot of member 0 for j < ``me``, VECTOR from then on."""
    return np.where(j < me, _slot(0, me), VECTOR)


def _fold_all(k: int, me: Ints) -> list[Step]:
    """Steps that fold ((y0 op y1) op y2) ... into VECTOR."""
    return [reduce(_partial(j - 1, me), _slot(j, me), dst=_partial(j, me)) for j in range(1, k)]


register(
    "allreduce",
    "recursive_multiplying",
    fold(exchanges, largest_smooth),
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: len(factors(largest_smooth(p))) + 2 * (largest_smooth(p) != p),
    sent=lambda p: sum(k - 1 for k in factors(largest_smooth(p))) + (largest_smooth(p) != p),
    memory=lambda p: max(factors(largest_smooth(p)), default=1) - 1 + 2 * (largest_smooth(p) != p),
    ordered=True,
)
