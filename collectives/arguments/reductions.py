"""Checks calls that reduce: reduce, all-reduce, reduce-scatter, scans."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from ..core import _core
from .buffers import AVG, REPRODUCIBLE_SUM, Buffer, checked_in_place, op_code, parse, refuse_overlap
from .calls import Arguments, Collective, Draft
from .datatypes import Type
from .packing import Packed
from .shape import Shape
from .vectors import integers

__all__ = ["draft", "outline"]


def draft(collective: Collective, arguments: Arguments, library: Any, rank: int, size: int) -> Draft:
    """The checked call of rank ``rank`` of ``size``; TypeError or ValueError if an argument is wrong.

    ``library`` is the transport's handle of the MPI library, for ops that only MPI can apply.
    """
    op = arguments.op
    code = _code(collective, op)
    if collective.base == "reduce_scatter":
        made = _reduce_scatter(collective, arguments, rank, size)
    elif collective.name == "reduce" and rank != arguments.root:
        made = _one_way(collective, arguments)
    else:
        made = _both(collective, arguments)
    buffer = made.owners[-1]
    _qualify(made, buffer.type, op, code)
    applied: Any = code
    if code is None and made.obstacle is None:
        datatype: Any = buffer.type.datatype
        applied = (library, op.handle, datatype.handle)
        if not datatype.is_predefined:
            made.owners = (*made.owners, _Kept(datatype))
    dtype = buffer.type.code if buffer.type.code is not None else -1
    made.shape = made.shape._replace(op=applied, dtype=dtype)
    made.owners = (*made.owners, arguments.op)
    return made


class _Kept:
    """Keeps a datatype's handle valid while it lives, though the program may free the datatype meanwhile.

    MPI libraries keep a datatype as long as another one is made of it. The handle stays the program's, since an op may
    compare the datatype that it is called with.
    """

    def __init__(self, datatype: MPI.Datatype):
        self._copy = datatype.Dup()

    def __del__(self) -> None:
        if not _core.ended():
            self._copy.Free()


def outline(collective: Collective, nbytes: int, kind: Type, op: Any) -> Draft:
    """A call of ``nbytes`` bytes of ``kind`` without memory, as input for the choice of an algorithm."""
    code, dtype = _code(collective, op), -1 if kind.code is None else kind.code
    itemsize = max(1, _itemsize(kind))
    shape = Shape(collective.base, 0, nbytes // itemsize, itemsize, dtype, code, False)
    made = Draft(collective, shape, 0, 0, nbytes, ())
    _qualify(made, kind, op, code)
    return made


def _code(collective: Collective, op: Any) -> int | None:
    """The kernels' code of ``op``, None if there is none; TypeError if ``collective`` cannot apply the op."""
    code = op_code(op)
    if op is AVG and not collective.averages:
        raise TypeError(f"op: collectives.AVG has no meaning for {collective.name}")
    return code


def _qualify(made: Draft, kind: Type, op: Any, code: int | None) -> None:
    """Set in ``made`` whether the op commutes, and why our algorithms or the MPI library cannot serve the call."""
    made.commutes = code is not None or op.Is_commutative()
    made.obstacle = _obstacle(kind, op, code)
    made.unknown = _unknown(kind, op)


def _shape(collective: Collective, buffer: Buffer, elements: int, root: int, same: bool, cuts: Any = None) -> Shape:
    return Shape(collective.base, root, elements, _itemsize(buffer.type), -1, None, same, cuts, None)


def _itemsize(kind: Type) -> int:
    """Bytes from one element to the next; a pair of double and int has a gap, which kernels skip."""
    return kind.extent if kind.code is not None else kind.size


def _both(collective: Collective, arguments: Arguments) -> Draft:
    """The draft of a rank whose input and result have the same number of elements."""
    target = parse(arguments.recvbuf, "recvbuf", True)
    same = checked_in_place(arguments.sendbuf, "sendbuf")
    source = target if same else parse(arguments.sendbuf, "sendbuf", False)
    _match(source, target)
    same = same or (source.address == target.address and target.count > 0)
    if not same:
        _apart(source, target)
    elements = target.count
    shape = _shape(collective, target, elements, arguments.root, same)
    return Draft(
        collective, shape, source.address, target.address, shape.nbytes, (source, target)
    )  # fmt: skip


def _one_way(collective: Collective, arguments: Arguments) -> Draft:
    """The draft of a rank of a reduce that is not the root."""
    source = parse(arguments.sendbuf, "sendbuf", False)
    shape = _shape(collective, source, source.count, arguments.root, False)
    return Draft(collective, shape, source.address, 0, source.count * shape.itemsize, (source,))


def _reduce_scatter(collective: Collective, arguments: Arguments, rank: int, size: int) -> Draft:
    same = checked_in_place(arguments.sendbuf, "sendbuf")
    target = parse(arguments.recvbuf, "recvbuf", True, size if same and not collective.vector else 1)
    if collective.vector:
        counts = integers(arguments.recvcounts, size, "recvcounts")
        if any(count < 0 for count in counts):
            raise ValueError(f"recvcounts: a count is negative: {min(counts)}")
    else:
        counts = (target.count,) * size
    cuts = tuple(itertools.accumulate(counts, initial=0))
    if same:
        if target.elements != cuts[-1]:
            raise ValueError(f"recvbuf has {target.elements} elements, recvcounts ask for {cuts[-1]}")
        shape = _shape(collective, target, cuts[-1], 0, False, cuts if collective.vector else None)
        whole = replace(target.type, size=shape.itemsize, dense=True)  # includes the gap of a pair
        result = Packed.of(Buffer(target.address, counts[rank], whole, target.owner))
        return Draft(
            collective, shape, target.address, result.address, cuts[-1] * shape.itemsize, (target,), stores=[result]
        )  # fmt: skip
    source = parse(arguments.sendbuf, "sendbuf", False, 1 if collective.vector else size)
    if collective.vector:
        if source.count != cuts[-1]:
            raise ValueError(f"sendbuf has {source.count} elements, recvcounts ask for {cuts[-1]}")
        if target.count != counts[rank]:
            raise ValueError(f"recvbuf has {target.count} elements, recvcounts[{rank}] is {counts[rank]}")
        _match_types(source, target)
    else:
        _match(source, target)
    _apart(source, target)
    shape = _shape(collective, target, cuts[-1], 0, False, cuts if collective.vector else None)
    return Draft(
        collective, shape, source.address, target.address, cuts[-1] * shape.itemsize, (source, target)
    )  # fmt: skip


def _match(source: Buffer, target: Buffer) -> None:
    if source.count != target.count:
        raise ValueError(f"sendbuf has {source.count} elements{_each(source)}, recvbuf {target.count}")
    _match_types(source, target)


def _each(buffer: Buffer) -> str:
    return " for each rank" if buffer.blocks > 1 else ""


def _match_types(source: Buffer, target: Buffer) -> None:
    one, other = source.type, target.type
    alike = one.size == other.size and one.code == other.code
    if alike and one.code is None:  # types of one length may have their data in different places
        alike = one.datatype == other.datatype
    if not alike:
        raise TypeError(f"sendbuf is of {one.name}, recvbuf of {'another' if one.name == other.name else other.name}")


def _apart(source: Buffer, target: Buffer) -> None:
    """Refuse memory that overlaps. Memory with gaps, as columns of a matrix have, is not compared."""
    if not (source.type.gapless and target.type.gapless):
        return
    a, b = (buffer.elements * buffer.type.extent for buffer in (source, target))
    refuse_overlap(source.address, target.address, a, b, "to reduce in place")


def _obstacle(kind: Type, op: Any, code: int | None) -> str | None:
    """Why this library's algorithms cannot serve a call, or None; TypeError if the op does not apply to the type."""
    if not kind.gapless:
        return "a derived datatype with gaps"
    if code is None and kind.datatype is None:
        return f"a user-defined op needs a datatype of MPI, and {kind.name} has none"
    if code is None:
        return None
    if kind.code is None:
        return f"no kernel for {kind.name}"
    if not _core.has_kernel(kind.code, code):
        raise TypeError(f"op: {_core.OPS[code]} does not apply to {kind.name}")
    return None


def _unknown(kind: Type, op: Any) -> str | None:
    """The op or the type for which the MPI library cannot serve a call, or None if it can."""
    if op is AVG or op is REPRODUCIBLE_SUM:
        return repr(op)
    if kind.datatype is None:
        return kind.name
    return None
