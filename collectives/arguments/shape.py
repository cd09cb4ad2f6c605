"""The shape of a call: together with the algorithm, all that a plan depends on."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ..schedules import registry
from .signature import Call, signature

__all__ = ["LOCAL_LENGTHS", "Shape", "describing", "kind_of_call"]

EAGER = 2048  # a message of up to this many bytes is sent at once by every MPI
LOCAL_LENGTHS = {registry.base(name) for name in registry.PRIVATE_LENGTHS}  # with unequal blocks


class Shape(NamedTuple):
    """What a plan depends on, besides the algorithm.

    ``collective`` is the one whose algorithms serve the call ("allgather" for an all-gather of unequal blocks too).
    ``elements`` is the number of elements, of ``itemsize`` bytes each, in all blocks as far as this rank knows.
    ``dtype`` is the kernels' code, or -1 for bytes that are only moved. ``op`` is a kernel's code, or ``(library, MPI
    op, MPI datatype)``, the last two as integers, or None if nothing is reduced. ``in_place``: input and vector are the
    same memory. ``cuts`` are the boundaries of the blocks in elements, None if the blocks are as equal as possible;
    ``input_cuts`` are those of the input if they differ. ``variant`` is the name of an exchange (``alltoallw``, or a
    collective of neighbours), whose blocks may lie anywhere: ``starts`` and ``input_starts`` say where each rank's
    begins, in elements, None if at the boundaries.
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
    variant: str = ""
    starts: tuple[int, ...] | None = None
    input_starts: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """Name of the collective that the program called."""
        if self.variant:
            return self.variant
        if self.collective == "reduce_scatter":
            return "reduce_scatter_block" if self.cuts is None else "reduce_scatter"
        return self.collective if self.cuts is None else f"{self.collective}v"

    @property
    def nbytes(self) -> int:
        """Bytes of the vector as far as this rank knows."""
        return self.elements * self.itemsize

    def call(self, algorithm: str) -> Call:
        """A description of a call of this shape by ``algorithm``, without its number."""
        return signature(self.name, algorithm, self.elements, self.dtype, self.op, self.root)


def describing(shape: Shape, algorithm: str) -> Callable[[], Call]:
    """A function that makes the Call for a shape and an algorithm; it is called only when a rank is asked."""
    return functools.partial(shape.call, algorithm)


@functools.lru_cache(maxsize=1024)
def kind_of(algorithm: str, collective: str, root: int, dtype: int, op: Any) -> int:
    """A number that is equal in all processes and, but for rare collisions, differs if an argument differs."""
    return zlib.crc32(repr((algorithm, collective, root, dtype, op if isinstance(op, int) else op is None)).encode())


def kind_of_call(algorithm: str, shape: Shape) -> int:
    """A number for the kind of a call, from which its tags follow; bytes that are only moved match any element type.

    Calls above EAGER bytes that differ in length do not match either: Open MPI corrupts memory if a receive is too
    short for a message that it does not send at once. Shorter calls match, and MPI reports the truncation.
    """
    kind = kind_of(
        algorithm, shape.variant or shape.collective, shape.root, -1 if shape.op is None else shape.dtype, shape.op
    )
    if shape.nbytes <= EAGER or shape.collective in LOCAL_LENGTHS:
        return kind
    return zlib.crc32(shape.nbytes.to_bytes(8, "little"), kind)
