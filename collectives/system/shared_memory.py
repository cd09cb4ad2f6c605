"""Which ranks of a communicator share memory, and their group in the node-local engine.

Two ranks count as ranks of one node if each can map the other's heap and read a nonce there.
"""

from __future__ import annotations

import array
import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from ..core import _core
from . import heap, machine

__all__ = [
    "Joined", "Offer", "common_ancestor", "digest_of", "join", "nodes_of", "offer", "on_one_machine",
]  # fmt: skip

Offer = tuple[str, bytes, int]  # boot id, identity of the heap, offset of the area of flags


class _Reach(NamedTuple):
    """What a rank tells about the ranks whose heaps it has mapped."""

    ranks: bytes  # their digest: the ranks themselves are many
    asks: bool
    readable: bool
    crowded: bool  # whether ranks outnumber the cores, as far as this rank can see


class Joined(NamedTuple):
    """The ranks of this rank's node; their group in the engine, None where there is no heap; why not all are there.

    ``crowded``: ranks outnumber the cores, as one of the group sees it; the same on all of them. ``nodes`` has the
    number of each rank's node, the lowest of its ranks; a rank without a heap is alone.
    """

    group: list[int]
    engine: _core.Node | None
    apart: str | None
    crowded: bool
    nodes: array.array[int]


def offer() -> tuple[Offer | None, _core.HeapBlock | None]:
    """What this rank tells the others of its heap, and the block of flags that it made there; None, None without."""
    own = heap.process_heap()
    if own is None:
        return None, None
    try:
        area = _core.HeapBlock(own, _core.area_bytes(), True)
    except MemoryError:
        return None, None
    return (machine.boot_id(), own.identify(), area.offset), area


def on_one_machine(mine: Offer | None, theirs: Offer | None) -> bool:
    """Whether the offers of two ranks come from one machine, so that each may be able to map the other's heap."""
    return mine is not None and theirs is not None and mine[0] == theirs[0]


def _reachable(offers: Mapping[int, Offer]) -> tuple[dict[int, _core.Mapping], dict[int, OSError]]:
    """The mappings by rank of the heaps that this rank can map, and the errors by rank of the others."""
    found, failures = {}, {}
    for peer, theirs in offers.items():
        try:
            found[peer] = heap.attach(theirs[1])
        except OSError as e:
            failures[peer] = e
    return found, failures


def digest_of(ranks: Iterable[int]) -> bytes:
    """A hash (BLAKE2b) of 16 bytes of a set of ranks."""
    return hashlib.blake2b(array.array("q", sorted(ranks)).tobytes(), digest_size=16).digest()


def nodes_of(digests: Sequence[bytes]) -> array.array[int]:
    """For each rank the lowest rank of its node: a set of ranks that all map each other's heaps, and no others.

    ``digests`` has, for each rank, the digest of the ranks whose heaps it maps. All ranks find the same nodes. A rank
    that maps only some heaps of a node is alone.
    """
    same: dict[bytes, list[int]] = {}
    for rank, digest in enumerate(digests):
        same.setdefault(digest, []).append(rank)
    whole = {digest for digest, ranks in same.items() if digest_of(ranks) == digest}
    return array.array("i", (same[d][0] if d in whole else rank for rank, d in enumerate(digests)))


def common_ancestor(pids: list[int]) -> int | None:
    """The nearest common ancestor of ``pids``, in general their launcher; None if it is PID 1 or not visible."""
    chains = [machine.ancestors(pid) for pid in pids]
    found = next((pid for pid in chains[0] if all(pid in chain for chain in chains)), 0)
    return found if found > 1 else None


_reader: int | None = None  # a process that, like its descendants, may read this process's private memory


def _admit(pids: list[int]) -> None:
    """Permit ``pids`` to read this process's private memory: Yama takes one process, with its descendants."""
    global _reader
    reader = common_ancestor([os.getpid(), *pids, *([_reader] if _reader is not None else [])])
    if reader is not None:
        _core.let_read(reader)
        _reader = reader


def _are_readable(mappings: dict[int, _core.Mapping]) -> bool:
    return all(mapping.private_is_readable for mapping in mappings.values())


def join(
    rank: int, size: int, offers: Mapping[int, Offer], area: _core.HeapBlock | None,
    exchange: Callable[[Any], Iterable[Any]], library: _core.MPILibrary | None = None,
    endpoint: _core.Endpoint | None = None, crowded: bool = False,
) -> Joined:  # fmt: skip
    """Join the ranks of this node in a group; all ranks call it together.

    ``offers`` are those of the ranks of its machine. ``crowded`` says whether this rank takes them for more than the
    cores. ``exchange`` gathers a named tuple from all ranks on all ranks (the bootstrap: MPI or a store).
    """
    mappings, failures = _reachable(offers)
    asks = len(mappings) > 1 and machine.ptrace_scope() == 1
    if asks:
        _admit([mapping.pid for mapping in mappings.values()])
    mine = _Reach(digest_of(mappings), asks, not asks and _are_readable(mappings), crowded)
    theirs, digests, asked = _reaches(mappings.keys(), exchange(mine) if size > 1 else [mine])
    if asked:  # after the exchange all ranks have given the permission
        theirs, *_ = _reaches(mappings.keys(), exchange(mine._replace(readable=_are_readable(mappings))))
    nodes = nodes_of(digests)
    group = [peer for peer, node in enumerate(nodes) if node == nodes[rank]]
    own = heap.process_heap()
    apart = _why_apart(size, group, offers, failures)
    crowded = any(theirs[peer].crowded for peer in group if peer in theirs)
    if own is None or area is None or rank not in mappings:
        apart = apart or heap.why_not() or "there is no shared memory left"
        return Joined(group, None, apart, crowded, nodes)
    areas = [offers[peer][2] for peer in group]
    here = [mappings[peer] for peer in group]
    node = _core.Node(own, group.index(rank), here, areas, area, library, endpoint, len(group) < size)
    if all(theirs[peer].readable for peer in group):
        node.read_private()
    return Joined(group, node, apart, crowded, nodes)


def _reaches(of: Set[int], all_ranks: Iterable[_Reach]) -> tuple[dict[int, _Reach], list[bytes], bool]:
    """What the ranks in ``of`` have told, by rank; all ranks' digests; whether any rank had to give a permission."""
    found, digests, asked = {}, [], False
    for peer, reach in enumerate(all_ranks):
        asked |= reach.asks
        digests.append(reach.ranks)
        if peer in of:
            found[peer] = reach
    return found, digests, asked


def _why_apart(
    size: int, group: list[int], offers: Mapping[int, Offer], failures: Mapping[int, OSError]
) -> str | None:  # fmt: skip
    """Why the ranks of a communicator do not share memory, as far as this rank knows, or None if they do."""
    if len(group) == size:
        return None
    other = next((rank for rank in failures if rank not in group), None)
    if other is not None:
        return f"rank {other} does not share memory with rank {group[0]}: its heap cannot be mapped ({failures[other]})"
    other = next(rank for rank in range(size) if rank not in group)
    why = "" if other in offers else ": it has no heap, or runs on another machine"
    return f"rank {other} does not share memory with rank {group[0]}{why}"
