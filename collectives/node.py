"""Which ranks of a communicator share memory, and their group in the node-local engine.

That two ranks are on one node is proved by mapping: each tries to map the other's heap and reads a nonce there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

from . import _core, heap, machine

__all__ = ["Offer", "common_ancestor", "group_of", "join", "offer", "why_apart"]

Offer = tuple[str, bytes, int]  # boot id, identity of the heap, offset of the area of flags


class _Reach(NamedTuple):
    """Ranks whose heaps a rank maps, whether it had to admit them to its private memory, whether it reads theirs."""

    ranks: frozenset[int]
    asks: bool
    readable: bool


def offer() -> tuple[Offer | None, _core.HeapBlock | None]:
    """What this rank tells the others, and the block of flags it made for the group; None without a heap."""
    own = heap.process_heap()
    if own is None:
        return None, None
    try:
        area = _core.HeapBlock(own, _core.area_bytes(), True)
    except MemoryError:
        return None, None
    return (machine.boot_id(), own.identify(), area.offset), area


def _reachable(rank: int, offers: list[Offer | None]) -> dict[int, _core.Mapping]:
    """The ranks whose heaps this rank can map, with the mappings."""
    mine, found = offers[rank], {}
    for peer, theirs in enumerate(offers):
        if mine is None or theirs is None or theirs[0] != mine[0]:
            continue
        try:
            found[peer] = heap.attach(theirs[1])
        except OSError:
            continue
    return found


def group_of(rank: int, reached: Sequence[Set[int]]) -> list[int]:
    """The ranks that share a node with ``rank``: those that reach the same ranks as it does, each the others.

    All ranks compute the same groups from the same lists; who reaches only some of a group is a node of its own.
    """
    mine = reached[rank]
    group = [peer for peer in sorted(mine) if reached[peer] == mine]
    return group if set(group) == mine and rank in mine else [rank]


def common_ancestor(pids: list[int]) -> int | None:
    """The process nearest to all of these from which they descend, their launcher as a rule; None if that is init."""
    chains = [machine.ancestors(pid) for pid in pids]
    found = next((pid for pid in chains[0] if all(pid in chain for chain in chains)), 0)
    return found if found > 1 else None


_reader: int | None = None  # with its descendants it may read this process's private memory


def _admit(pids: list[int]) -> None:
    """Let these processes read this one's private memory, and as few others as Yama lets us name."""
    global _reader
    reader = common_ancestor([os.getpid(), *pids, *([_reader] if _reader is not None else [])])
    if reader is not None:
        _core.let_read(reader)
        _reader = reader


def _are_readable(mappings: dict[int, _core.Mapping]) -> bool:
    return all(mapping.private_is_readable for mapping in mappings.values())


def join(
    rank: int, offers: list[Offer | None], area: _core.HeapBlock | None, exchange: Callable[[Any], list[Any]],
    library: _core.MPILibrary | None = None, endpoint: _core.Endpoint | None = None,
) -> tuple[list[int], _core.Node | None]:  # fmt: skip
    """The ranks of this rank's node, and its group; None where it has no heap. All ranks call it together.

    ``exchange`` gathers a named tuple from all ranks on all ranks (the bootstrap: MPI or a store).
    """
    mappings = _reachable(rank, offers)
    asks = len(mappings) > 1 and machine.ptrace_scope() == 1
    if asks:
        _admit([mapping.pid for mapping in mappings.values()])
    mine = _Reach(frozenset(mappings), asks, not asks and _are_readable(mappings))
    theirs = exchange(mine) if len(offers) > 1 else [mine]
    if any(reach.asks for reach in theirs):  # by now all have admitted the others
        theirs = exchange(mine._replace(readable=_are_readable(mappings)))
    group = group_of(rank, [reach.ranks for reach in theirs])
    own = heap.process_heap()
    if own is None or area is None or rank not in mappings:
        return group, None
    members = [offers[peer] for peer in group]
    areas = [member[2] for member in members if member is not None]
    node = _core.Node(own, group.index(rank), [mappings[p] for p in group], areas, area, library, endpoint)
    if all(theirs[peer].readable for peer in group):
        node.read_private()
    return group, node


def why_apart(size: int, group: list[int], engine: _core.Node | None) -> str | None:
    """Why the ranks of a communicator cannot use the node-local engine together, or None if they can."""
    if len(group) < size:
        others = next(rank for rank in range(size) if rank not in group)
        return f"rank {others} does not share memory with rank {group[0]}"
    if engine is None:
        return heap.why_not() or "there is no shared memory left"
    return None
