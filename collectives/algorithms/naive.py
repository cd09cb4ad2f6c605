"""Naive: all ranks send to one driver, which reduces, and for an all-reduce sends the result back.

    round      rank 0 (driver)                rank 1        rank 2
      0      ((x0 op x1) op x2) ...  <-      send x1       send x2
      1      send the result  ->             receive       receive

Cost of both (p-1)(alpha + n beta) a round + (p-1) n gamma, all at the driver. Never the fastest; a baseline for
comparisons. Every element is folded in rank order, so this is also the simplest deterministic fold.
"""

from collections.abc import Iterator
from typing import Any

from ..schedules.registry import register
from ..schedules.schedule import ALL, SCRATCH, VECTOR, Ints, Round, Rounds, Series, Step, each, recv, recv_reduce, send
from ..schedules.schedule import reduce as reduce_step


def fold_arrivals(
    size: int, me: Ints, block: Ints = 0, nblocks: int = ALL, *, low: int = SCRATCH, own: int = VECTOR, when: Any = True
) -> list[Step | Series]:
    """Steps that receive from all other ranks and fold in rank order into VECTOR; ``own`` holds the data of ``me``.

    Data from ranks below ``me`` are folded in ``low``.
    """

    def below(peer: Ints) -> list[Step]:
        return [recv_reduce(peer, block, nblocks, received_left=False, src=low, dst=low, when=when & (peer < me))]

    def above(peer: Ints) -> list[Step]:
        return [recv_reduce(peer, block, nblocks, received_left=False, when=when & (peer > me))]

    return [
        recv(0, block, nblocks, dst=low, when=when & (me > 0)),
        each(range(1, size), below),
        reduce_step(low, own, block, nblocks, when=when & (me > 0)),
        each(range(1, size), above),
    ]


@Rounds
def reduce(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send whole vectors, each one block, to the root, which folds them."""
    yield [send(root, when=rank != root), *fold_arrivals(size, root, when=rank == root)]


@Rounds
def send_back(rank: Ints, size: int) -> Iterator[Round]:
    """Send the result from rank 0 to every rank."""
    yield [recv(0, when=rank > 0), each(range(1, size), lambda r: [send(r, when=rank == 0)])]


register(
    "allreduce",
    "naive",
    reduce + send_back,
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p: 2 if p > 1 else 0,
    sent=lambda p: p - 1,
    memory=lambda p: 2 * (p - 1),
    ordered=True,
    linear=True,
)
register(
    "reduce",
    "naive",
    reduce,
    doc="Naive: all send to the root, which folds in rank order.",
    blocks=lambda p: 1,
    rounds=lambda p, root=0: int(p > 1),
    sent=lambda p, root=0: int(p > 1),
    memory=lambda p, root=0: 2 * (p - 1) - (root > 0),
    ordered=True,
    linear=True,
)
