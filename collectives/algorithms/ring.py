"""Ring: every rank exchanges messages with its two neighbours only.

Reduce-scatter, then all-gather, on p blocks, p - 1 rounds each. In round t of the reduce-scatter, rank r sends block
r - t - 1 and adds its own contribution to block r - t - 2. After p - 1 rounds block r is complete on rank r:

    round      rank 0       rank 1       rank 2          (-> to the right neighbour)
      0      send 2 ->    send 0 ->    send 1 ->
      1      send 1 ->    send 2 ->    send 0 ->

Each half is registered as a collective too. Cost of both 2(p-1) alpha + 2n(p-1)/p beta + n(p-1)/p gamma (all-gather:
Thakur, Rabenseifner, Gropp 2005, section 4.1).
"""

from collections.abc import Iterator

from ..schedules.patterns import ring as neighbours
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, Step, each, recv, recv_reduce, send


@Rounds
def reduce_scatter(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce block r to rank r."""
    left, right = neighbours(rank, size)

    def pass_on(t: Ints) -> list[Step]:
        arrival = recv_reduce(left, (rank - t - 2) % size, 1, received_left=left < rank)
        return [send(right, (rank - t - 1) % size, 1), arrival]

    yield each(range(size - 1), pass_on)


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """Gather block r of every rank r on all ranks."""
    left, right = neighbours(rank, size)
    yield each(range(size - 1), lambda t: [send(right, (rank - t) % size, 1), recv(left, (rank - t - 1) % size, 1)])


for _collective, _generator, _halves, _memory in (
    ("allreduce", reduce_scatter + allgather, 2, lambda p: 2 * (p > 1)),
    ("reduce_scatter", reduce_scatter, 1, lambda p: 2 * (p > 1) + p * (p > 2)),
    ("allgather", allgather, 1, lambda p: 0),
):
    register(
        _collective,
        "ring",
        _generator,
        doc=__doc__,
        blocks=lambda p: p,
        rounds=lambda p, halves=_halves: halves * (p - 1),
        sent=lambda p, halves=_halves: halves * (p - 1),
        memory=_memory,
        divisible=lambda p: True,
        order="block",
    )
