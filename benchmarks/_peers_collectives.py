"""The collectives of ``peers.py`` in their forms, and how long their buffers are. Every root is rank 0."""

from __future__ import annotations

ITEM = 4  # bytes of a float32
MOST = 64 << 20  # bytes of a vector; larger ones are left out

NAMES = (
    "barrier", "bcast", "reduce", "allreduce", "allgather", "allgatherv", "gather", "gatherv", "scatter", "scatterv",
    "alltoall", "alltoallv", "reduce_scatter", "reduce_scatter_block", "scan", "exscan",
)  # fmt: skip

FORMS = ("{}", "i{}", "{}_persistent")  # names as of OSU's programs


def form_of(name: str) -> tuple[str, str]:
    """The collective of a name, and its form, one of FORMS."""
    return next((known, form) for form in FORMS for known in NAMES if form.format(known) == name)


def lengths(collective: str, rank: int, size: int, n: int) -> tuple[int, int]:
    """Elements that a rank sends and receives, for a message of n elements as OSU's benchmarks count them.

    n is the block of one rank if the collective moves blocks, else the whole vector. For a broadcast all ranks receive.
    """
    root, (collective, _) = rank == 0, form_of(collective)
    match collective.removesuffix("v").removesuffix("_block"):
        case "barrier":
            return 0, 0
        case "bcast":
            return 0, n
        case "reduce":
            return n, n * root
        case "allgather":
            return n, n * size
        case "gather":
            return n, n * size * root
        case "scatter":
            return n * size * root, n
        case "alltoall":
            return n * size, n * size
        case "reduce_scatter":
            return n, n // size
        case _:  # allreduce and the scans
            return n, n


def vector(collective: str, size: int, nbytes: int) -> int:
    """Bytes of the longest buffer."""
    return max(lengths(collective, 0, size, nbytes // ITEM)) * ITEM


def sizes(collective: str, size: int, wanted: list[int]) -> list[int]:
    """The sizes that a collective can have, and for which there is enough memory."""
    base, _ = form_of(collective)
    if base == "barrier":
        return [0]
    whole = ITEM * size if base.startswith("reduce_scatter") else ITEM
    return [n for n in wanted if n % whole == 0 and (n * size <= MOST or vector(collective, size, n) == n)]
