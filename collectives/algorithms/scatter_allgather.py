"""Scatter and all-gather: a broadcast of long vectors; or a reduction, by reduce-scatter and gather.

The broadcast scatters the root's blocks along a binomial tree, then gathers all blocks on all ranks along a ring. The
reduction is a circulant reduce-scatter, then a binomial gather to the root. In both a rank sends about 2n(p-1)/p bytes,
instead of the n ceil(lg p) of a tree of whole vectors.

The broadcast costs (ceil(lg p) + p - 1) alpha + 2n(p-1)/p beta; the reduction 2 ceil(lg p) alpha + 2n(p-1)/p beta +
n(p-1)/p gamma (Thakur, Rabenseifner, Gropp 2005, section 4, on broadcast and reduce).
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds
from . import binomial, circulant, ring


@Rounds
def bcast(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send the whole vector from the root to every rank."""
    yield from binomial.scatter(rank, size, root=root)
    yield from ring.allgather(rank, size)


@Rounds
def reduce(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Reduce the whole vector to the root."""
    yield from circulant.reduce_scatter(rank, size)
    yield from binomial.gather(rank, size, root=root)


register(
    "bcast",
    "scatter_allgather",
    bcast,
    doc="Scatter and all-gather: the root scatters the vector, and a ring gathers it on all ranks.",
    blocks=lambda p: p,
    rounds=lambda p, root=0: ceil_log2(p) + p - 1,
    sent=lambda p, root=0: 2 * (p - 1),
    memory=lambda p, root=0: 0,
)
register(
    "reduce",
    "scatter_gather",
    reduce,
    doc="Scatter and gather: a circulant reduce-scatter, then a binomial gather to the root.",
    blocks=lambda p: p,
    rounds=lambda p, root=0: 2 * ceil_log2(p),
    sent=lambda p, root=0: p - 1 + binomial.gathered(p),
    memory=lambda p, root=0: circulant.staged(p) + p * (p > 1),
)
