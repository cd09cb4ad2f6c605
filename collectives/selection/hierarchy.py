"""When a call of ranks on several nodes is hierarchical by default."""

from __future__ import annotations

__all__ = ["NAME", "NO_NODES", "by_default"]

NAME = "hierarchical"
#: Why a call without a communicator of ranks on several nodes cannot be hierarchical.
NO_NODES = "it is known of no two ranks that they share a node"
#: Bytes of the vector from which on, and up to which (None: any more), a call is hierarchical by default, and the
#: fewest lanes for that. Measured on 4 hosts of 2 ranks and on hosts of 1, 2 and 1 ranks with links of 200 Mbit/s, on
#: Open MPI and MPICH: a long all-reduce takes 0.75 to 1.0 of the ring's time over two lanes, 1.1 over one.
DEFAULT: dict[str, tuple[int, int | None, int]] = {"allreduce": (2 << 20, None, 2), "bcast": (0, 256 << 10, 1)}


def by_default(collective: str, nbytes: int, lanes: int) -> bool:
    """Whether a call on a vector of ``nbytes`` bytes is hierarchical by default, if it can be."""
    least, most, fewest = DEFAULT.get(collective, (0, -1, 1))
    return least <= nbytes and (most is None or nbytes <= most) and lanes >= fewest
