"""What mpi4py takes as a buffer, as flat NumPy arrays; and the reductions of ranks that are threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import collectives

Array = np.ndarray[Any, np.dtype[Any]]


class Blocks(NamedTuple):
    """A flat array with a block for each rank, of ``counts[r]`` elements from element ``displs[r]`` on."""

    data: Array
    counts: list[int]
    displs: list[int]

    def block(self, rank: int) -> Array:
        """The block of `rank`, a view."""
        return self.data[self.displs[rank] : self.displs[rank] + self.counts[rank]]


def _mpi(name: str) -> Any:
    """The attribute of mpi4py's MPI; None if the program has not imported it, and so cannot have meant it."""
    return getattr(sys.modules.get("mpi4py.MPI"), name, None)


def in_place(buffer: Any) -> bool:
    """Whether `buffer` is ``MPI.IN_PLACE``."""
    return buffer is not None and buffer is _mpi("IN_PLACE")


def is_any(value: Any, name: str) -> bool:
    """Whether `value`, a rank or a tag, is None or mpi4py's constant of that name."""
    return value is None or value == _mpi(name)


def flat(buffer: Any, what: str, writable: bool = False) -> Array:
    """The memory of `buffer` as a flat array: an array, a tensor, Python's buffers, or a list that begins with one.

    Raises TypeError for memory with gaps, for memory that is read-only and must be written, and for other objects.
    """
    data, counts = _data(buffer), _counts(buffer)
    if isinstance(data, np.ndarray) or hasattr(data, "__array__"):
        array = np.asarray(data)
    else:
        array = np.frombuffer(memoryview(data), np.uint8)
    if not array.flags.forc:
        raise TypeError(f"{what}: the memory has gaps between its elements")
    if writable and not array.flags.writeable:
        raise TypeError(f"{what}: the memory is read-only")
    whole = array.reshape(-1, order="A")
    if isinstance(counts, int):
        if counts > whole.size:
            raise ValueError(f"{what}: {counts} elements of an array of {whole.size}")
        return whole[:counts]
    return whole


def blocks(buffer: Any, size: int, what: str, writable: bool = False) -> Blocks:
    """The memory of `buffer` with a block for each of `size` ranks: equal ones, or as counts and displacements say.

    Raises ValueError if they do not fit, and as `flat`.
    """
    array, counts = flat(buffer, what, writable), _counts(buffer)
    if counts is None or isinstance(counts, int):
        if array.size % size:
            raise ValueError(f"{what}: {array.size} elements are no equal blocks for {size} ranks")
        counts = [array.size // size] * size
    displs = _displs(buffer)
    if displs is None:
        displs = [sum(counts[:rank]) for rank in range(len(counts))]
    if len(counts) != size or len(displs) != size:
        raise ValueError(f"{what}: counts for {len(counts)} of {size} ranks, displacements for {len(displs)}")
    if any(c < 0 or d < 0 or d + c > array.size for c, d in zip(counts, displs, strict=True)):
        raise ValueError(f"{what}: a block is outside of the array of {array.size} elements")
    return Blocks(array, counts, displs)


def _data(buffer: Any) -> Any:
    return buffer[0] if isinstance(buffer, list | tuple) else buffer


def _numbers(buffer: Any) -> list[Any]:
    """The parts of a list that are numbers or sequences of numbers: not the data, nor a datatype."""
    rest = list(buffer[1:]) if isinstance(buffer, list | tuple) else []
    rest = [part for part in rest if isinstance(part, int | np.integer | Sequence | np.ndarray)]
    flat_rest = (
        list(rest[0]) if rest and isinstance(rest[0], tuple) and len(rest[0]) == 2 and _nested(rest[0]) else rest
    )
    return [part for part in flat_rest if not isinstance(part, str)]


def _nested(pair: tuple[Any, Any]) -> bool:
    return all(part is None or isinstance(part, Sequence | np.ndarray) for part in pair)


def _counts(buffer: Any) -> int | list[int] | None:
    numbers = _numbers(buffer)
    if not numbers or numbers[0] is None:
        return None
    first = numbers[0]
    return int(first) if isinstance(first, int | np.integer) else [int(n) for n in first]


def _displs(buffer: Any) -> list[int] | None:
    numbers = _numbers(buffer)
    return None if len(numbers) < 2 or numbers[1] is None else [int(n) for n in numbers[1]]


_UFUNCS: dict[str, Callable[..., Array]] = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}  # fmt: skip


def name_of(op: Any) -> str:
    """The name of an op: that of MPI's, "AVG" or "REPRODUCIBLE_SUM". None is SUM. TypeError for any other."""
    if op is None:
        return "SUM"
    own = {"collectives.AVG": "AVG", "collectives.REPRODUCIBLE_SUM": "REPRODUCIBLE_SUM"}
    name = own.get(repr(op)) or next((name for name in _UFUNCS if op == _mpi(name)), None)
    if name is None:
        raise TypeError(f"op: ranks that are threads do not know {op!r}")
    return name


def fold(arrays: list[Array], name: str) -> Array:
    """``((x0 op x1) op x2) ...`` of arrays of one shape, in this order, as a new array.

    The bits are those of the node-local engine: sums, products and means of elements of 16 bits are accumulated in
    float32 and rounded once.
    """
    if name == "REPRODUCIBLE_SUM":
        return np.asarray(collectives.reproducible_sum(np.stack(arrays), axis=0))
    dtype = arrays[0].dtype
    narrow = dtype.itemsize == 2 and dtype.kind not in "iub"
    wide = np.dtype(np.float32) if narrow and name in ("SUM", "PROD", "AVG") else dtype
    if name == "AVG" and wide.kind not in "fc":
        raise TypeError(f"AVG is for floating and complex types, not {dtype}")
    function = _UFUNCS["SUM" if name == "AVG" else name]
    total = arrays[0].astype(wide)
    for array in arrays[1:]:
        total[...] = function(total, array.astype(wide, copy=False))
    if name == "AVG":
        total /= wide.type(len(arrays))
    return total.astype(dtype, copy=False)
