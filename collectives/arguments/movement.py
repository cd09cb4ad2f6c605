"""Checks calls that only move data: broadcast, gather, scatter, all-gather, all-to-all, and their vector forms.

Everything is counted in bytes of packed data, which are equal on all ranks even if their datatypes differ.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from ..core import _core
from .buffers import Buffer, checked_in_place, in_place, parse, refuse_overlap
from .calls import Arguments, Collective, Draft, Side
from .packing import Packed, region
from .shape import Shape
from .vectors import parse_vector, vector_in_place

__all__ = ["as_bytes", "draft", "for_mpi", "outline"]

Cuts = tuple[int, ...] | None
_TWO = "sendbuf", "recvbuf"
#: The largest count, or displacement, that every MPI library takes.
LARGEST = 2**31 - 1
#: Most bytes of an element in which longer messages are counted.
LONGEST_UNIT = 1 << 16


def draft(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    """The checked call of rank ``rank`` of ``size``; TypeError or ValueError if an argument is wrong."""
    return _DRAFTS[collective.base](collective, arguments, rank, size)


def outline(collective: Collective, nbytes: int) -> Draft:
    """A call of ``nbytes`` bytes without memory, as input for the choice of an algorithm."""
    return Draft(collective, _shape(collective, nbytes, 0, False, None), 0, 0, nbytes if collective.agreed else 0, ())


def _draft(
    collective: Collective, shape: Shape, source: int, target: int, agreed: int, *buffers: Buffer, **more: Any
) -> Draft:  # fmt: skip
    """A draft that moves bytes; the type of the first of ``buffers`` says which elements these are."""
    kind = buffers[0].type
    if collective.name == "alltoallv" or shape.elements == 0:  # each pair of ranks may have other types
        return Draft(collective, shape, source, target, agreed, buffers, **more)
    return Draft(
        collective, shape._replace(dtype=kind.basic), source, target, agreed, buffers, parts=kind.parts, **more
    )  # fmt: skip


def _shape(collective: Collective, nbytes: int, root: int, same: bool, cuts: Cuts, input_cuts: Cuts = None) -> Shape:
    return Shape(collective.base, root, nbytes, 1, -1, None, same, cuts, input_cuts)


def _all_blocks(spec: Any, argument: str, writable: bool, collective: Collective, size: int) -> Buffer:
    if collective.vector:
        return parse_vector(spec, argument, writable, size)
    return parse(spec, argument, writable, size)


def _cuts(buffer: Buffer) -> Cuts:
    """Boundaries of blocks in bytes if the blocks may differ in length, else None."""
    return buffer.cuts if buffer.counts is not None else None


def _alone(rank: int, size: int, nbytes: int) -> tuple[int, ...]:
    """Boundaries of the blocks on a rank that only knows its own block: all other blocks are empty."""
    return (0,) * (rank + 1) + (nbytes,) * (size - rank)


def _expect(given: Buffer, nbytes: int, expected: int, other: Buffer, names: tuple[str, str]) -> None:
    """ValueError or TypeError if a rank's block has another length or type in ``given`` than in ``other``."""
    if nbytes != expected:
        raise ValueError(f"{names[0]} has {nbytes} bytes, this rank's block of {names[1]} {expected}")
    if nbytes and given.type.parts and other.type.parts and given.type.parts != other.type.parts:
        raise TypeError(f"{names[0]} is of {given.type.name}, {names[1]} of {other.type.name}")


def _apart(one: Side, other: Side) -> None:
    """ValueError if the two buffers overlap; temporaries never do."""
    if one.packed is None and other.packed is None:
        lengths = one.buffer.nbytes, other.buffer.nbytes
        refuse_overlap(one.address, other.address, *lengths, "where the standard has it")


def _bcast(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    side = Side(parse(arguments.sendbuf, "buf", rank != root))
    nbytes = side.buffer.nbytes
    shape = _shape(collective, nbytes, root, True, None)
    made = _draft(collective, shape, side.address, side.address, nbytes, side.buffer)
    if rank == root:
        made.loads = side.scattered
    else:
        made.stores = side.scattered
    return made


def _allgather(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
    return _gathered(collective, arguments, target, 0, rank, size)


def _gathered(collective: Collective, arguments: Arguments, target: Side, root: int, rank: int, size: int) -> Draft:
    """The draft of a rank that receives all blocks: in an all-gather, or the root of a gather."""
    cuts = target.buffer.cuts
    begin, end = cuts[rank], cuts[rank + 1]
    same = checked_in_place(arguments.sendbuf, "sendbuf")
    made = _draft(
        collective, _shape(collective, cuts[-1], root, same, _cuts(target.buffer)), target.address + begin,
        target.address, cuts[-1] if collective.agreed else 0, target.buffer, stores=target.scattered,
    )  # fmt: skip
    if same:
        made.loads = target.scattered
        return made
    source = Side(parse(arguments.sendbuf, "sendbuf", False))
    _expect(source.buffer, source.buffer.nbytes, end - begin, target.buffer, _TWO)
    _apart(source, target)
    made.source, made.loads = source.address, source.scattered
    made.owners = source.buffer, target.buffer
    return made


def _gather(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    if rank == root:
        target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
        return _gathered(collective, arguments, target, root, rank, size)
    source = Side(parse(arguments.sendbuf, "sendbuf", False))
    total, cuts = _seen_by_one(collective, source.buffer.nbytes, rank, size)
    return _draft(
        collective, _shape(collective, total, root, False, cuts), source.address, 0, total if collective.agreed else 0,
        source.buffer, loads=source.scattered,
    )  # fmt: skip


def _seen_by_one(collective: Collective, nbytes: int, rank: int, size: int) -> tuple[int, Cuts]:
    """Bytes and block boundaries of the vector on a rank that only knows its own block, of ``nbytes`` bytes."""
    if collective.vector:
        return nbytes, _alone(rank, size, nbytes)
    return nbytes * size, None


def _scatter(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    root = arguments.root
    if rank != root:
        target = Side(parse(arguments.recvbuf, "recvbuf", True))
        total, cuts = _seen_by_one(collective, target.buffer.nbytes, rank, size)
        return _draft(
            collective, _shape(collective, total, root, False, cuts), 0, target.address,
            total if collective.agreed else 0, target.buffer, stores=target.scattered,
        )  # fmt: skip
    source = Side(_all_blocks(arguments.sendbuf, "sendbuf", False, collective, size))
    cuts = source.buffer.cuts
    begin, end = cuts[rank], cuts[rank + 1]
    made = _draft(
        collective, _shape(collective, cuts[-1], root, False, _cuts(source.buffer)), source.address, 0,
        cuts[-1] if collective.agreed else 0, source.buffer, loads=source.scattered,
    )  # fmt: skip
    if checked_in_place(arguments.recvbuf, "recvbuf"):  # the root's block stays in sendbuf
        spare = np.empty(max(1, end - begin), np.uint8)
        made.target, made.spare = spare.ctypes.data, spare
        return made
    target = Side(parse(arguments.recvbuf, "recvbuf", True))
    _expect(target.buffer, target.buffer.nbytes, end - begin, source.buffer, _TWO[::-1])
    _apart(source, target)
    made.target, made.stores = target.address, target.scattered
    made.owners = source.buffer, target.buffer
    return made


def _swaps_in_place(collective: Collective, sendbuf: Any, size: int) -> bool:
    return vector_in_place(sendbuf, "sendbuf", size) if collective.vector else checked_in_place(sendbuf, "sendbuf")


def _alltoall(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    target = Side(_all_blocks(arguments.recvbuf, "recvbuf", True, collective, size))
    cuts = target.buffer.cuts
    # In place, arriving blocks must not overwrite blocks that have not been sent.
    if _swaps_in_place(collective, arguments.sendbuf, size):
        copy = Packed.of(target.buffer)
        return _draft(
            collective, _shape(collective, cuts[-1], 0, False, _cuts(target.buffer), _cuts(target.buffer)),
            copy.address, target.address, cuts[-1] if collective.agreed else 0, target.buffer,
            loads=[copy], stores=target.scattered,
        )  # fmt: skip
    source = Side(_all_blocks(arguments.sendbuf, "sendbuf", False, collective, size))
    sent = source.buffer.cuts
    _expect(source.buffer, sent[rank + 1] - sent[rank], cuts[rank + 1] - cuts[rank], target.buffer, _TWO)
    _apart(source, target)
    return _draft(
        collective, _shape(collective, cuts[-1], 0, False, _cuts(target.buffer), _cuts(source.buffer)),
        source.address, target.address, cuts[-1] if collective.agreed else 0,
        target.buffer, source.buffer, loads=source.scattered, stores=target.scattered,
    )  # fmt: skip


def for_mpi(draft: Draft, arguments: Arguments, rank: int, size: int) -> Arguments:
    """The arguments for mpi4py; elements without an MPI datatype are described as runs of bytes."""
    collective = draft.collective
    if all(map(_is_known, draft.owners)):
        return arguments

    def spelled(spec: Any, argument: str, whole: bool, significant: bool) -> Any:
        if not significant or in_place(spec):
            return spec
        buffer = _all_blocks(spec, argument, False, collective, size) if whole else parse(spec, argument, False)
        if _is_known(buffer):
            return spec
        memory: Any = MPI.buffer.fromaddress(buffer.address, _end(buffer))
        counts = buffer.count if buffer.counts is None else (list(buffer.counts), list(buffer.displs or ()))
        return [memory, counts, buffer.type.datatype or _run_of_bytes(buffer.type.size)]

    base, root = collective.base, rank == arguments.root
    return replace(
        arguments,
        sendbuf=spelled(arguments.sendbuf, "sendbuf", base in ("scatter", "alltoall"), base != "scatter" or root),
        recvbuf=spelled(
            arguments.recvbuf, "recvbuf", base in ("gather", "allgather", "alltoall"), base != "gather" or root
        ),
    )


def _is_known(buffer: Buffer) -> bool:
    """Whether mpi4py accepts the buffer unchanged; mpi4py needs DLPack for tensors, which some lack."""
    return buffer.type.datatype is not None and not hasattr(buffer.owner[0], "data_ptr")


def _end(buffer: Buffer) -> int:
    """Bytes from the start of a buffer to the end of its data."""
    ends = (address + count * buffer.type.size for address, count in buffer.pieces())
    return max([buffer.address, *ends]) - buffer.address


@functools.cache
def _run_of_bytes(size: int) -> MPI.Datatype:
    return MPI.BYTE if size == 1 else MPI.BYTE.Create_contiguous(size).Commit()


def _unit(cuts: Sequence[int]) -> int:
    """Bytes of an element in which MPI can count blocks with these boundaries, in bytes; 1 if there is none.

    It follows from the boundaries alone, so that ranks that know the same boundaries count in the same elements.
    """
    if cuts[-1] <= LARGEST:
        return 1
    common, least = math.gcd(*cuts), -(-cuts[-1] // LARGEST)
    return next((n for n in range(least, LONGEST_UNIT + 1) if common % n == 0), 1)


def as_bytes(collective: Collective, shape: Shape, source: int, target: int, rank: int, size: int) -> Arguments:
    """The arguments of a blocking call as bytes, for the MPI library's own method; the data have no gaps.

    ``source`` and ``target`` are the addresses of input and vector. More bytes than MPI can count are runs of bytes.
    """
    root = shape.root
    cuts = shape.cuts or _core.partition(shape.elements, size)
    input_cuts = shape.input_cuts or _core.partition(shape.elements, size)

    def whole(address: int, cuts: Sequence[int]) -> Any:
        unit, memory = _unit(cuts), region(address, cuts[-1])
        if not collective.vector:
            return [memory, _run_of_bytes(unit)]
        places = [cut // unit for cut in cuts]
        counts = [end - begin for begin, end in itertools.pairwise(places)]
        return [memory, (counts, places[:-1]), _run_of_bytes(unit)]

    def block(address: int) -> Any:
        return [region(address, cuts[rank + 1] - cuts[rank]), _run_of_bytes(_unit(cuts))]

    match shape.collective:
        case "bcast":
            return Arguments(whole(target, (0, shape.elements)), root=root)
        case "scatter":
            return Arguments(whole(source, cuts) if rank == root else None, block(target), root=root)
        case "alltoall":
            return Arguments(whole(source, input_cuts), whole(target, cuts))
        case name:
            receives = name == "allgather" or rank == root
            mine = MPI.IN_PLACE if shape.in_place else block(source)
            return Arguments(mine, whole(target, cuts) if receives else None, root=root)


_DRAFTS = {
    "bcast": _bcast, "gather": _gather, "scatter": _scatter, "allgather": _allgather, "alltoall": _alltoall,
}  # fmt: skip
