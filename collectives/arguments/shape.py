"""The shape of a call: all that a plan is made for besides the algorithm, and what follows from it."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from .signature import Call, signature

__all__ = ["LOCAL_LENGTHS", "Shape", "describing", "kind_of_call"]

EAGER = 2048  # bytes that every MPI sends at once
LOCAL_LENGTHS = ("gather", "scatter", "alltoall")  # of unequal blocks ranks know but some lengths


class Shape(NamedTuple):
    """What a plan is made for, besides the algorithm.

    ``collective`` is the one whose algorithms serve the call ("allgather" for an all-gather of unequal blocks too).
    ``elements`` of ``itemsize`` bytes are those of all blocks together, as this rank knows them; ``dtype`` is the
    kernels' code, or -1 for bytes that are only moved. ``op`` is a kernel's code, ``(library, MPI op, MPI datatype)``
    as integers behind the library, or None where nothing is reduced. ``in_place``: input and vector are the same
    memory. ``cuts`` are the boundaries of the blocks in elements where they are not as equal as can be, and
    ``input_cuts`` those of the input where they differ.
    """

    collective: str
    root: int
    elements: int
    itemsize: int
    dtype: int
    op: Any
    in_place: bool
    cuts: tuple[int, ...] | None = None
    input_cuts: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Name of the collective that is called."""
        if self.collective == "reduce_scatter":
            return "reduce_scatter_block" if self.cuts is None else "reduce_scatter"
        return self.collective if self.cuts is None else f"{self.collective}v"

    @property
    def nbytes(self) -> int:
        """Bytes of the vector, as this rank knows it."""
        return self.elements * self.itemsize

    def call(self, algorithm: str) -> Call:
        """A call of this shape, in words; without its number."""
        return signature(self.name, algorithm, self.elements, self.dtype, self.op, self.root)


def describing(shape: Shape, algorithm: str) -> Callable[[], Call]:
    """What makes a Call of a shape and an algorithm, when somebody asks."""
    return functools.partial(shape.call, algorithm)


@functools.lru_cache(maxsize=1024)
def kind_of(algorithm: str, collective: str, root: int, dtype: int, op: Any) -> int:
    """A number that nearly always differs where one of these does, and is the same in all processes."""
    return zlib.crc32(repr((algorithm, collective, root, dtype, op if isinstance(op, int) else op is None)).encode())


def kind_of_call(algorithm: str, shape: Shape) -> int:
    """:func:`kind_of` of a call, from which its tags follow; bytes that are only moved match elements of any type.

    Long calls of different lengths do not match, either: Open MPI corrupts memory where a receive is too short for a
    message that it does not send at once. Short ones do, and MPI tells of the difference at once.
    """
    kind = kind_of(algorithm, *shape[:2], -1 if shape.op is None else shape.dtype, shape.op)
    if shape.nbytes <= EAGER or shape.collective in LOCAL_LENGTHS:
        return kind
    return zlib.crc32(shape.nbytes.to_bytes(8, "little"), kind)
