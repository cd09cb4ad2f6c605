"""Buffers of the vector forms (Allgatherv and others): a count and a displacement for every rank."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .buffers import Buffer, addressed, in_place, parts, refuse_repeats, within
from .datatypes import Type, of_mpi
from .memory import LOWEST, memory_of

__all__ = ["integers", "parse_vector", "vector_in_place"]


def parse_vector(spec: Any, argument: str, writable: bool, blocks: int) -> Buffer:
    """The buffer that ``[array, counts, datatype]`` or ``[array, (counts, displacements), datatype]`` describes.

    Parts may be left out. Without counts the array is divided as evenly as possible, and the blocks are adjacent. One
    integer as counts stands for equal counts; one integer as displacements is a stride. Displacements may be negative
    as far as the array goes that the memory is a view of. With addresses as displacements, None is MPI.BOTTOM.
    TypeError if ``spec`` is no buffer; ValueError if it is strided, too short, read-only while ``writable`` is set, or
    has a negative count.
    """
    memory, counts, displs, datatype = parts(spec, argument, (tuple,))
    address, nbytes, own, hold = memory_of(memory, datatype, argument, writable)
    given = _counts(counts, nbytes, own, blocks, argument)
    places = _displacements(displs, given, blocks, argument)
    if memory is not None and memory is not MPI.BOTTOM:
        for rank, (count, displ) in enumerate(zip(given, places, strict=True)):
            if count and not within(memory, nbytes, own, displ, count):
                there = nbytes // own.extent if own.extent > 0 else nbytes
                raise ValueError(
                    f"{argument}: {count} elements from {displ} on, for rank {rank}, in a buffer of {there}"
                )
            if writable:
                refuse_repeats(memory, nbytes, own, count, argument)
    elif memory is None and any(n and displ * own.extent < LOWEST for n, displ in zip(given, places, strict=True)):
        raise ValueError(f"{argument}: the buffer is None, but the counts are not all 0")
    for count, displ in zip(given, places, strict=True):
        addressed(address, displ if count else 0, count, own, argument)
    return Buffer(address, sum(given), own, (memory, datatype, hold), blocks, given, places)


def vector_in_place(spec: Any, argument: str, blocks: int) -> bool:
    """As :func:`checked_in_place`, for a list with a count, or a count and a displacement, for each of ``blocks``."""
    if not in_place(spec) or not isinstance(spec, (list, tuple)):
        return in_place(spec)
    _, counts, displs, datatype = parts(spec, argument, (tuple,))
    if isinstance(datatype, str):
        of_mpi(datatype, argument)
    given = _counts(counts, 0, of_mpi(MPI.BYTE, argument), blocks, argument)
    _displacements(displs, given, blocks, argument)
    return True


def integers(values: Any, length: int, argument: str) -> tuple[int, ...]:
    """``values``, a sequence of ``length`` integers, as a tuple; TypeError or ValueError if it is none."""
    if not isinstance(values, Sequence) and not hasattr(values, "__len__"):
        raise TypeError(f"{argument}: expected {length} integers, not {type(values).__name__}")
    if len(values) != length:
        raise ValueError(f"{argument}: expected {length} integers, one for each rank, got {len(values)}")
    try:
        return tuple(operator.index(v) for v in (values.tolist() if hasattr(values, "tolist") else values))
    except TypeError:
        raise TypeError(f"{argument}: expected integers, got {values!r}") from None


def _is_integer(value: Any) -> bool:
    """Whether ``value`` is one integer; an array of one element is not."""
    return hasattr(value, "__index__") and not getattr(value, "shape", ())


def _counts(counts: Any, nbytes: int, kind: Type, blocks: int, argument: str) -> tuple[int, ...]:
    if counts is None:
        if nbytes and (kind.extent <= 0 or nbytes % kind.extent):
            raise ValueError(f"{argument}: {nbytes} bytes are not a multiple of the datatype's extent, {kind.extent}")
        each, more = divmod(nbytes // kind.extent if nbytes else 0, blocks)
        return tuple(each + (i < more) for i in range(blocks))
    given = (operator.index(counts),) * blocks if _is_integer(counts) else integers(counts, blocks, argument)
    if any(count < 0 for count in given):
        raise ValueError(f"{argument}: a count is negative: {min(given)}")
    return given


def _displacements(displs: Any, counts: tuple[int, ...], blocks: int, argument: str) -> tuple[int, ...]:
    if displs is None:
        return tuple(itertools.accumulate(counts, initial=0))[:-1]
    if _is_integer(displs):
        return tuple(operator.index(displs) * i for i in range(blocks))
    return integers(displs, blocks, argument)
