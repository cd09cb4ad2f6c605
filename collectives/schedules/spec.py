"""What ranks hold before each collective and must hold at its end; schedules are built and proved from this table.

A vector is cut into blocks. In a *blockwise* collective, block i belongs to rank i, and there are as many blocks as
ranks; in other collectives an algorithm cuts the vector as it likes. A rank's INPUT and VECTOR hold all blocks, only
the rank's own, or none: then the rank has no such memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["ALL", "NONE", "SPECS", "Spec"]

ALL = -1  # all blocks; as nblocks of a step, the whole vector
NONE = -2  # no blocks; also a field that a kind of step does not use
_OWN = 0  # only the rank's own block

#: Function (rank, block, size, root): the ranks whose contributions the block must hold, as a bit mask.
Sources = Callable[[int, int, int, int], int]


def _everybody(rank: int, block: int, size: int, root: int) -> int:
    return (1 << size) - 1


def _root(rank: int, block: int, size: int, root: int) -> int:
    return 1 << root


def _owner(rank: int, block: int, size: int, root: int) -> int:
    return 1 << block


def _up_to_rank(rank: int, block: int, size: int, root: int) -> int:
    return (2 << rank) - 1


def _below_rank(rank: int, block: int, size: int, root: int) -> int:
    return (1 << rank) - 1


@dataclass(frozen=True)
class Spec:
    """One collective. ``input`` and ``vector`` are the blocks that INPUT holds and that VECTOR must hold at the end.

    ``sources``: whose contributions a block must hold. ``root_only``: the buffer that only the root has. ``aliases``:
    INPUT and VECTOR may be the same memory, block by block. ``reduces``: there is an op. ``exchanges``: block j of
    INPUT is for rank j, block i of VECTOR from rank i. ``first_has_none``: rank 0 has no VECTOR.
    """

    input: int
    vector: int
    sources: Sources
    rooted: bool = False
    root_only: str = ""
    blockwise: bool = False
    aliases: bool = True
    reduces: bool = False
    exchanges: bool = False
    first_has_none: bool = False

    def held(self, rank: int, root: int) -> int:
        """The blocks that the INPUT of ``rank`` holds: ALL, NONE, or the number of its one block."""
        return self._part(self.input, self.root_only == "input" and rank != root, rank)

    def owned(self, rank: int, root: int) -> int:
        """The blocks that the VECTOR of ``rank`` must hold at the end: ALL, NONE, or the number of its one block."""
        absent = (self.root_only == "vector" and rank != root) or (self.first_has_none and rank == 0)
        return self._part(self.vector, absent, rank)

    def _part(self, part: int, absent: bool, rank: int) -> int:
        return NONE if absent else rank if part == _OWN else part

    def wanted(self, rank: int, block: int, size: int, root: int) -> tuple[int, int]:
        """The contributions (bit mask of ranks, number of their block) that a block of VECTOR must hold at the end."""
        return self.sources(rank, block, size, root), rank if self.exchanges else block


SPECS = {
    "allreduce": Spec(ALL, ALL, _everybody, reduces=True),
    "reduce": Spec(ALL, ALL, _everybody, rooted=True, root_only="vector", reduces=True),
    "bcast": Spec(NONE, ALL, _root, rooted=True, aliases=False),  # the root's VECTOR is the data
    "allgather": Spec(_OWN, ALL, _owner, blockwise=True),
    "gather": Spec(_OWN, ALL, _owner, rooted=True, root_only="vector", blockwise=True),
    "reduce_scatter": Spec(ALL, _OWN, _everybody, blockwise=True, aliases=False, reduces=True),
    "scatter": Spec(ALL, _OWN, _root, rooted=True, root_only="input", blockwise=True),
    "alltoall": Spec(ALL, ALL, _owner, blockwise=True, aliases=False, exchanges=True),
    "scan": Spec(ALL, ALL, _up_to_rank, reduces=True),
    "exscan": Spec(ALL, ALL, _below_rank, reduces=True, first_has_none=True),
    "barrier": Spec(ALL, ALL, _everybody),  # the union of the ranks known to have arrived
}
