"""Calls that only move data: broadcast, gather, scatter, all-gather, all-to-all, equal blocks or not.

Everything is counted in bytes of packed data, which is what all ranks agree on whatever datatypes they name.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from . import _core
from .buffers import Buffer, in_place, parse
from .calls import Arguments, Collective, Draft, Side
from .packing import Packed, region
from .plans import Shape
from .vectors import parse_vector

__all__ = ["as_bytes", "draft"]

Cuts = tuple[int, ...] | None


def draft(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    """Check the arguments of a call on this rank of ``size``; TypeError or ValueError where they will not do."""
    return _DRAFTS[collective.base](collective, arguments, rank, size)


def _shape(collective: Collective, nbytes: int, root: int, same: bool, cuts: Cuts, input_cuts: Cuts = None) -> Shape:
    return Shape(collective.base, root, nbytes, 1, -1, None, same, cuts, input_cuts)


def _all_blocks(spec: Any, argument: str, writable: bool, collective: Collective, size: int) -> Buffer:
    if collective.vector:
        return parse_vector(spec, argument, writable, size)
    return parse(spec, argument, writable, size)


def _cuts(buffer: Buffer) -> Cuts:
    """Boundaries of blocks that may differ; None where they are equal."""
    return buffer.cuts if buffer.counts is not None else None


def _alone(rank: int, size: int, nbytes: int) -> tuple[int, ...]:
    """Boundaries of the blocks where only the own one is known."""
    return (0,) * (rank + 1) + (nbytes,) * (size - rank)


def _expect(nbytes: int, expected: int, argument: str, other: str) -> None:
    if nbytes != expected:
        raise ValueError(f"{argument} has {nbytes} bytes, this rank's block of {other} {expected}")


def _apart(one: Side, other: Side) -> None:
    """Refuse buffers that overlap; temporaries never do."""
    if one.packed is None and other.packed is None:
        a, b = one.buffer.nbytes, other.buffer.nbytes
        if a and b and one.address < other.address + b and other.address < one.address + a:
            raise ValueError("sendbuf and recvbuf overlap; pass MPI.IN_PLACE where the standard has it")


def _bcast(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    side = Side(parse(arguments.sendbuf, "buf", rank != root))
    nbytes = side.buffer.nbytes
    made = Draft(
        collective, _shape(collective, nbytes, root, True, None), side.address, side.address, nbytes, side.buffer.owner
    )
    if rank == root:
        made.loads = side.scattered
    else:
        made.stores = side.scattered
    return made


def _allgather(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
    return _gathered(collective, arguments, target, 0, rank, size)


def _gathered(collective: Collective, arguments: Arguments, target: Side, root: int, rank: int, size: int) -> Draft:
    """A rank that receives all blocks: of an all-gather, or the root of a gather."""
    cuts = target.buffer.cuts
    begin, end = cuts[rank], cuts[rank + 1]
    same = in_place(arguments.sendbuf)
    made = Draft(
        collective,
        _shape(collective, cuts[-1], root, same, _cuts(target.buffer)),
        target.address + begin,
        target.address,
        cuts[-1] if collective.agreed else 0,
        target.buffer.owner,
        stores=target.scattered,
    )
    if same:
        made.loads = target.scattered
        return made
    source = Side(parse(arguments.sendbuf, "sendbuf", False))
    _expect(source.buffer.nbytes, end - begin, "sendbuf", "recvbuf")
    _apart(source, target)
    made.source, made.loads = source.address, source.scattered
    made.owners = source.buffer.owner, target.buffer.owner
    return made


def _gather(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    if rank == root:
        target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
        return _gathered(collective, arguments, target, root, rank, size)
    source = Side(parse(arguments.sendbuf, "sendbuf", False))
    total, cuts = _seen_by_one(collective, source.buffer.nbytes, rank, size)
    return Draft(
        collective, _shape(collective, total, root, False, cuts), source.address, 0, total if collective.agreed else 0,
        source.buffer.owner, loads=source.scattered,
    )  # fmt: skip


def _seen_by_one(collective: Collective, nbytes: int, rank: int, size: int) -> tuple[int, Cuts]:
    """Bytes and cuts of the vector where a rank knows its own block."""
    if collective.vector:
        return nbytes, _alone(rank, size, nbytes)
    return nbytes * size, None


def _scatter(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    if rank != root:
        target = Side(parse(arguments.recvbuf, "recvbuf", True))
        total, cuts = _seen_by_one(collective, target.buffer.nbytes, rank, size)
        return Draft(
            collective, _shape(collective, total, root, False, cuts), 0, target.address,
            total if collective.agreed else 0, target.buffer.owner, stores=target.scattered,
        )  # fmt: skip
    source = Side(_all_blocks(arguments.sendbuf, "sendbuf", False, collective, size))
    cuts = source.buffer.cuts
    begin, end = cuts[rank], cuts[rank + 1]
    made = Draft(
        collective, _shape(collective, cuts[-1], root, False, _cuts(source.buffer)), source.address, 0,
        cuts[-1] if collective.agreed else 0, source.buffer.owner, loads=source.scattered,
    )  # fmt: skip
    if arguments.recvbuf is MPI.IN_PLACE or arguments.recvbuf is None:  # the root's block stays where it is
        spare = np.empty(max(1, end - begin), np.uint8)
        made.target, made.owners = spare.ctypes.data, (source.buffer.owner, spare)
        return made
    target = Side(parse(arguments.recvbuf, "recvbuf", True))
    _expect(target.buffer.nbytes, end - begin, "recvbuf", "sendbuf")
    _apart(source, target)
    made.target, made.stores = target.address, target.scattered
    made.owners = source.buffer.owner, target.buffer.owner
    return made


def _alltoall(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
    cuts = target.buffer.cuts
    if in_place(arguments.sendbuf):  # what comes may not overwrite what has yet to go
        copy = Packed(target.buffer)
        return Draft(
            collective, _shape(collective, cuts[-1], 0, False, _cuts(target.buffer), _cuts(target.buffer)),
            copy.address, target.address, cuts[-1] if collective.agreed else 0, target.buffer.owner,
            loads=[copy], stores=target.scattered,
        )  # fmt: skip
    source = Side(_all_blocks(arguments.sendbuf, "sendbuf", False, collective, size))
    sent = source.buffer.cuts
    _expect(sent[rank + 1] - sent[rank], cuts[rank + 1] - cuts[rank], "sendbuf", "recvbuf")
    _apart(source, target)
    return Draft(
        collective, _shape(collective, cuts[-1], 0, False, _cuts(target.buffer), _cuts(source.buffer)),
        source.address, target.address, cuts[-1] if collective.agreed else 0,
        (source.buffer.owner, target.buffer.owner), loads=source.scattered, stores=target.scattered,
    )  # fmt: skip


def as_bytes(draft: Draft, rank: int, size: int) -> Arguments:
    """What the MPI library's own method takes for a blocking call, as bytes: of any element type, without gaps."""
    shape, root = draft.shape, draft.shape.root
    cuts = shape.cuts or _core.partition(shape.elements, size)
    input_cuts = shape.input_cuts or _core.partition(shape.elements, size)

    def whole(address: int, cuts: Sequence[int]) -> Any:
        memory = region(address, cuts[-1])
        counts = [end - begin for begin, end in itertools.pairwise(cuts)]
        return [memory, (counts, list(cuts[:-1])), MPI.BYTE] if draft.collective.vector else [memory, MPI.BYTE]

    def block(address: int) -> Any:
        return [region(address, cuts[rank + 1] - cuts[rank]), MPI.BYTE]

    match shape.collective:
        case "bcast":
            return Arguments([region(draft.target, shape.elements), MPI.BYTE], root=root)
        case "scatter":
            return Arguments(whole(draft.source, cuts) if rank == root else None, block(draft.target), root=root)
        case "alltoall":
            return Arguments(whole(draft.source, input_cuts), whole(draft.target, cuts))
        case collective:
            receives = collective == "allgather" or rank == root
            mine = MPI.IN_PLACE if shape.in_place else block(draft.source)
            return Arguments(mine, whole(draft.target, cuts) if receives else None, root=root)


_DRAFTS = {
    "bcast": _bcast, "gather": _gather, "scatter": _scatter, "allgather": _allgather, "alltoall": _alltoall,
}  # fmt: skip
