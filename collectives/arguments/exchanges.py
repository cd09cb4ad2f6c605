"""Checks exchanges: all-to-allw, and the collectives of neighbours.

They are all-to-alls with a block for every rank. The block for a rank is all that the call sends to it: nothing, one
block of the program's, or several one after the other. A side (what is sent, what is received) is used as it lies if
each rank's block is one run of bytes; otherwise it is packed.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from mpi4py import MPI

from ..core import _core
from .buffers import in_place, parse, refuse_overlap, room_before
from .calls import Arguments, Collective, Draft
from .datatypes import Type, of_mpi
from .memory import LOWEST, memory_of
from .packing import Packed
from .shape import Shape
from .vectors import integers, parse_vector

__all__ = ["draft"]


class Piece(NamedTuple):
    """A block of the program's: ``elements`` of ``type`` at ``address``, for ``peer`` or from it."""

    peer: int
    address: int
    elements: int
    type: Type

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.elements * self.type.size


class Side:
    """What a rank sends, or receives: ``pieces`` in the order of the ranks, and of their messages."""

    def __init__(self, pieces: list[Piece], owner: Any, size: int):
        self.pieces, self.owner, self.size = pieces, owner, size
        lengths = [0] * size
        for piece in pieces:
            lengths[piece.peer] += piece.nbytes
        self.cuts = tuple(itertools.accumulate(lengths, initial=0))
        self.runs = self._runs()

    def _runs(self) -> dict[int, tuple[int, int]] | None:
        """Address and bytes of the block of each rank that has one; None if some are scattered."""
        found: dict[int, tuple[int, int]] = {}
        for piece in self.pieces:
            address, nbytes = found.get(piece.peer, (piece.address, 0))
            if not piece.type.dense or address + nbytes != piece.address:
                return None
            found[piece.peer] = address, nbytes + piece.nbytes
        return found

    def laid_out(self, ordered: bool, copied: bool) -> tuple[int, tuple[int, ...], Packed | None]:
        """Where the blocks lie: the address of the first, and the distances of all from it.

        They are in a temporary, the third result, if they are to be ``copied`` or are scattered, or if they are to be
        side by side in the order of the ranks (``ordered``) and are not.
        """
        if self.runs and not copied:
            base = min(address for address, _ in self.runs.values())
            starts = tuple(self.runs[rank][0] - base if rank in self.runs else 0 for rank in range(self.size))
            if not ordered or all(starts[rank] == self.cuts[rank] for rank in self.runs):
                return base, starts, None
        packed = Packed([piece[1:] for piece in self.pieces], self.owner)
        return packed.address, self.cuts[:-1], packed


def draft(collective: Collective, arguments: Arguments, peers: _core.Peers, rank: int, size: int) -> Draft:
    """The checked call of rank ``rank`` of ``size``; TypeError or ValueError if an argument is wrong."""
    blocks, owner = _BLOCKS[collective.name][1](arguments.recvbuf, "recvbuf", True, len(peers.sources))
    target = _side(blocks, peers.sources, peers.orders[0], owner, size)
    copied = in_place(arguments.sendbuf)
    if copied and collective.name != "alltoallw":
        raise TypeError(f"sendbuf: expected a buffer, not MPI.IN_PLACE: {collective.method} is never in place")
    if not copied:
        blocks, owner = _BLOCKS[collective.name][0](arguments.sendbuf, "sendbuf", False, len(peers.targets))
        source = _side(blocks, peers.targets, peers.orders[1], owner, size)
        sent, here = (side.cuts[rank + 1] - side.cuts[rank] for side in (source, target))
        if sent != here:
            raise ValueError(f"sendbuf has {sent} bytes for this rank itself, recvbuf {here}")
    else:  # arriving blocks must not overwrite blocks that have not been sent
        if isinstance(arguments.sendbuf, (list, tuple)):
            _listed(arguments.sendbuf, "sendbuf", len(peers.targets))  # raises if it is wrong
        source = target
    return _draft(collective, source, target, ordered=False, copies=copied)


def _side(
    blocks: list[tuple[int, int, Type]], ranks: tuple[int, ...], order: tuple[int, ...], owner: Any, size: int
) -> Side:
    """A side without empty blocks, and without those of neighbours that do not exist, which ``order`` leaves out."""
    found = (Piece(ranks[i], *blocks[i]) for i in order)
    return Side([piece for piece in found if piece.nbytes], owner, size)


def _draft(collective: Collective, source: Side, target: Side, ordered: bool, copies: bool) -> Draft:
    """The draft; ``ordered``: blocks must lie side by side; ``copies``: what is sent must be copied."""
    into, out = target.laid_out(ordered, False), source.laid_out(ordered, copies)
    if not copies:
        _refuse_overlap(source, target)
    shape = Shape(
        "alltoall", 0, target.cuts[-1], 1, -1, None, False, target.cuts, source.cuts, collective.name,
        *((None, None) if ordered else (into[1], out[1])),
    )  # fmt: skip
    return Draft(
        collective, shape, out[0], into[0], 0, (target.owner, source.owner),
        loads=[] if out[2] is None else [out[2]], stores=[] if into[2] is None else [into[2]],
        in_order=None if ordered else lambda: _draft(collective, source, target, True, copies),
    )  # fmt: skip


def _refuse_overlap(source: Side, target: Side) -> None:
    """ValueError if a block that is received lies where one that is sent lies.

    Blocks with gaps may lie in the gaps of others, as the columns of a matrix do: they are not compared.
    """
    sides = enumerate((source.pieces, target.pieces))
    spans = sorted((p.address, p.nbytes, side) for side, pieces in sides for p in pieces if p.type.dense)
    ends = [0, 0]
    for address, nbytes, side in spans:
        if address < ends[1 - side]:
            refuse_overlap(address, address, nbytes, 1, "where the standard has it")
        ends[side] = max(ends[side], address + nbytes)


Blocks = tuple[list[tuple[int, int, Type]], Any]  # address, count and type of each block; what keeps them alive


def _one(spec: Any, argument: str, writable: bool, blocks: int) -> Blocks:
    """The one block that goes to all neighbours."""
    buffer = parse(spec, argument, writable)
    return [(buffer.address, buffer.count, buffer.type)] * blocks, buffer.owner


def _equal(spec: Any, argument: str, writable: bool, blocks: int) -> Blocks:
    """Blocks of equal length, one after the other."""
    if blocks == 0:
        return [], None
    buffer = parse(spec, argument, writable, blocks)
    step = buffer.count * buffer.type.extent
    return [(buffer.address + i * step, buffer.count, buffer.type) for i in range(blocks)], buffer.owner


def _counted(spec: Any, argument: str, writable: bool, blocks: int) -> Blocks:
    """Blocks with counts and displacements, of one type."""
    if blocks == 0:
        return [], None
    buffer = parse_vector(spec, argument, writable, blocks)
    places = zip(buffer.counts or (), buffer.displs or (), strict=True)
    kind = buffer.type
    return [(buffer.address + displ * kind.extent, count, kind) for count, displ in places], buffer.owner


def _typed(spec: Any, argument: str, writable: bool, blocks: int) -> Blocks:
    """Blocks with counts, displacements in bytes, and types."""
    listed = _listed(spec, argument, blocks)
    memory = spec[0]
    address, nbytes, _, hold = memory_of(memory, MPI.BYTE, argument, writable)
    room = None if memory is None or memory is MPI.BOTTOM else nbytes
    found = []
    for number, (count, displ, kind) in enumerate(listed):
        _check(argument, number, kind, count, displ, room, memory)
        found.append((address + displ, count, kind))
    return found, (memory, spec[-1], hold)


def _listed(spec: Any, argument: str, blocks: int) -> list[tuple[int, int, Type]]:
    """Count, displacement in bytes, and type of each block of ``[array, types]``, ``[array, (counts, displacements),
    types]`` or ``[array, counts, displacements, types]``. Without counts a block is one element from the start on."""
    if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
        raise TypeError(f"{argument}: expected [buffer, counts, displacements, datatypes]")
    _, *middle, types = spec
    if len(middle) == 1:
        if not isinstance(middle[0], (list, tuple)) or len(middle[0]) != 2:
            raise TypeError(f"{argument}: expected (counts, displacements), got {middle[0]!r}")
        middle = list(middle[0])
    given = [None, None] if not middle else middle
    counts, displs = ((default,) * blocks if values is None else integers(values, blocks, argument)
                      for values, default in zip(given, (1, 0), strict=True))  # fmt: skip
    if not isinstance(types, (list, tuple)) or len(types) != blocks:
        raise TypeError(f"{argument}: expected a list of {blocks} datatypes, one for each block")
    if min(counts, default=0) < 0:
        raise ValueError(f"{argument}: a count is negative: {min(counts)}")
    return [(counts[i], displs[i], of_mpi(types[i], argument)) for i in range(blocks)]


def _check(argument: str, number: int, kind: Type, count: int, displ: int, room: int | None, memory: Any) -> None:
    """ValueError unless block ``number`` lies in a buffer of ``room`` bytes (None: anywhere in memory)."""
    if count * kind.size == 0:
        return
    if memory is None and displ < LOWEST:  # else None is MPI.BOTTOM, and the displacements are addresses
        raise ValueError(f"{argument}: the buffer is None, but the counts are not all 0")
    if room is None:
        if not 0 <= displ <= displ + count * max(kind.extent, kind.size) < 1 << 63:
            raise ValueError(
                f"{argument}: block {number}, of {count} elements from address {displ} on, is beyond any memory"
            )
        return
    ends = displ, displ + (count - 1) * kind.extent
    if min(ends) + kind.lower < -room_before(memory) or max(ends) + kind.upper > room:
        raise ValueError(
            f"{argument}: block {number}, of {count} elements from byte {displ} on, is not within {room} bytes"
        )


#: How the buffers of each exchange are given: what is sent, and what is received.
_BLOCKS = {
    "alltoallw": (_typed, _typed),
    "neighbor_allgather": (_one, _equal),
    "neighbor_allgatherv": (_one, _counted),
    "neighbor_alltoall": (_equal, _equal),
    "neighbor_alltoallv": (_counted, _counted),
    "neighbor_alltoallw": (_typed, _typed),
}
