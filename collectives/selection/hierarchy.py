"""When a call of ranks on several nodes is hierarchical by default."""

from __future__ import annotations

__all__ = ["NAME", "NO_NODES", "by_default"]

NAME = "hierarchical"
#: Why no call can be hierarchical under rules that were made without a communicator.
NO_NODES = "no communicator is given, so no ranks are known to share a node"
_KB = 1 << 10
_SHORT: list[tuple[int, int | None, int]] = [(0, 64 * _KB, 1)]
#: When a call is hierarchical by default: bytes of the vector from which on, and up to which (None: any more), and the
#: fewest lanes for that. Measured on 4 hosts of 2 ranks, and on hosts of 1, 2, 1 and 2 ranks, with links of 200 Mbit/s
#: and without limit, on MPICH and Open MPI. A hierarchical call took 0.5 to 0.9 of the time of the schedule that serves
#: it otherwise, but an all-reduce of 256 KiB 1.08 on the slow links. Over one lane a long all-reduce took 1.1 of the
#: time of the ring.
DEFAULT: dict[str, list[tuple[int, int | None, int]]] = {
    "allreduce": [(0, 256 * _KB, 1), (0, None, 2)],
    "bcast": [(0, 128 * _KB, 1)],
    "reduce": [(128 * _KB, None, 2)],
    "allgather": [(0, 32 * _KB, 1)],
    "reduce_scatter": _SHORT,
    "reduce_scatter_block": _SHORT,
    "alltoall": [(0, 4 * _KB, 1)],
    "barrier": [(0, None, 1)],
}


def by_default(collective: str, nbytes: int, lanes: int) -> bool:
    """Whether a call on a vector of ``nbytes`` bytes is hierarchical by default, if it can be."""
    return any(
        least <= nbytes and (most is None or nbytes <= most) and lanes >= fewest
        for least, most, fewest in DEFAULT.get(collective, [])
    )
