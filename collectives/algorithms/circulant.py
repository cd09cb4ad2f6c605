"""Circulant: the bytes of the ring in the number of rounds of a tree, for any p.

Reduce-scatter, then all-gather, on p blocks. On rank r, R[i] is block (r + i) mod p. Each round begins with s' blocks
(p in the first round) and ends with s = ceil(s'/2): rank r sends R[s..s'-1] to rank r + s, which adds them to its
R[0..s'-s-1]. When s is 1, R[0] is reduced. The all-gather uses the same distances s in reverse order.

    p = 6            to      sends       adds to     (the same on every rank r, modulo p)
    s = 6 -> 3      r + 3    R[3..5]     R[0..2]
    s = 3 -> 2      r + 2    R[2]        R[0]
    s = 2 -> 1      r + 1    R[1]        R[0]

Each half is registered as a collective too. Cost of both 2 ceil(lg p) alpha + 2n(p-1)/p beta + n(p-1)/p gamma. Operands
wrap around from rank p - 1 to 0, so the op must commute (Traeff 2024, arXiv 2410.14234).
"""

from collections.abc import Iterator

from ..schedules.patterns import ceil_log2, circulant_skips
from ..schedules.registry import register
from ..schedules.schedule import Ints, Round, Rounds, recv, recv_reduce, send, wrapped


@Rounds
def reduce_scatter(rank: Ints, size: int) -> Iterator[Round]:
    """Reduce block r to rank r."""
    for skip, count in circulant_skips(size):
        to, source = (rank + skip) % size, (rank - skip) % size
        yield [
            *wrapped(send(to, rank + skip, count), size),
            *wrapped(recv_reduce(source, rank, count, received_left=source < rank), size),
        ]


@Rounds
def allgather(rank: Ints, size: int) -> Iterator[Round]:
    """Gather block r of every rank r on all ranks."""
    for skip, count in reversed(list(circulant_skips(size))):
        to, source = (rank - skip) % size, (rank + skip) % size
        yield [*wrapped(send(to, rank, count), size), *wrapped(recv(source, rank + skip, count), size)]


def staged(size: int) -> int:
    """Blocks of staging for two rounds: a slot of h = p // 2 blocks, or two of h - 1 if the range wraps around."""
    half = size // 2
    return 2 * max(half, 2 * (half - 1))


def _single(size: int) -> bool:
    """Whether every step handles one block."""
    return size < 4


for _collective, _generator, _halves, _memory in (
    ("allreduce", reduce_scatter + allgather, 2, staged),
    ("reduce_scatter", reduce_scatter, 1, lambda p: staged(p) + p * (p > 3)),
    ("allgather", allgather, 1, lambda p: 0),
):
    register(
        _collective,
        "circulant",
        _generator,
        doc=__doc__,
        blocks=lambda p: p,
        rounds=lambda p, halves=_halves: halves * ceil_log2(p),
        sent=lambda p, halves=_halves: halves * (p - 1),
        memory=_memory,
        divisible=None if _collective == "allreduce" else _single,
        order="cyclic",
    )
