"""When a call of ranks on several nodes is hierarchical by default."""

from __future__ import annotations

from ..schedules import registry

__all__ = ["NAME", "NO_NODES", "by_default"]

NAME = "hierarchical"
#: Why a call without a communicator of ranks on several nodes cannot be hierarchical.
NO_NODES = "it is known of no two ranks that they share a node"
#: Bytes from which and up to which a call is hierarchical by default; None: any more.
DEFAULT: dict[str, tuple[int, int | None]] = {}


def by_default(collective: str, nbytes: int) -> bool:
    """Whether a call on a vector of ``nbytes`` bytes is hierarchical by default, if it can be."""
    least, most = DEFAULT.get(registry.base(collective), (0, -1))
    return least <= nbytes and (most is None or nbytes <= most)
