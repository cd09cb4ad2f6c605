"""Chain: the root sends to the next rank, which sends to the rank after it, and so on.

    root 0, p = 4      0 -> 1, then 1 -> 2, then 2 -> 3

One message takes (p-1)(alpha + n beta), which is slow. A pipeline of k segments takes (p + k - 2)(alpha + n/k beta):
about n beta for long vectors, which is the lower bound.
"""

from collections.abc import Iterator

from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, Step, each, recv, send


@Rounds
def bcast(rank: Ints, size: int, root: int = 0) -> Iterator[Round]:
    """Send the whole vector from the root to every rank."""
    position = (rank - root) % size

    def link(v: Ints) -> list[Step]:
        return [
            send((root + v) % size, when=position == v - 1),
            recv((root + v - 1) % size, when=position == v),
        ]

    yield each(range(1, size), link)


register(
    "bcast",
    "chain",
    bcast,
    doc=__doc__,
    blocks=lambda p: 1,
    rounds=lambda p, root=0: p - 1,
    sent=lambda p, root=0: int(p > 1),
    memory=lambda p, root=0: 0,
    order="block",
)
