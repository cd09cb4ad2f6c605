"""One array in parts along any axes: what a rank hands over of it, and what is read of it later."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .arrays import is_array
from .sharded import Array


class Slice(NamedTuple):
    """This rank's part of an array of ``shape``: ``array`` begins at ``start`` of it, which has a number for each axis.

    The parts of all ranks must cover the array, without overlap. An array without elements is no part.
    """

    array: Any
    start: tuple[int, ...]
    shape: tuple[int, ...]


class Block(NamedTuple):
    """Elements [``start``, ``stop``) of a stored array; ``read(i, j)`` gives the block's own rows [i, j)."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    read: Callable[[int, int], Array]


class StoredArray:
    """An array in a checkpoint that was saved as `Slice`s, of which a rank reads the part that it needs.

    ``np.asarray(stored)`` is the whole array. Files are read when elements are asked for.
    """

    def __init__(self, blocks: Sequence[Block], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._blocks, self.shape, self.dtype = list(blocks), shape, dtype

    def __repr__(self) -> str:
        return f"StoredArray({self.shape}, {self.dtype})"

    def read(self, start: Sequence[int], stop: Sequence[int]) -> Array:
        """A new array of the elements [`start`, `stop`). ValueError if these are no part of the array."""
        if len(start) != len(self.shape) or len(stop) != len(self.shape):
            raise ValueError(f"{start} to {stop} are no part of a stored array of {self.shape}")
        if not all(0 <= a <= b <= n for a, b, n in zip(start, stop, self.shape, strict=True)):
            raise ValueError(f"{start} to {stop} are no part of a stored array of {self.shape}")
        out = np.empty([b - a for a, b in zip(start, stop, strict=True)], self.dtype)
        for block in self._blocks:
            low = [max(a, b) for a, b in zip(start, block.start, strict=True)]
            high = [min(a, b) for a, b in zip(stop, block.stop, strict=True)]
            if all(a < b for a, b in zip(low, high, strict=True)):
                out[_within(low, high, start)] = _part(block, low, high)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a stored array is read from files, which is a copy")
        whole = self.read((0,) * len(self.shape), self.shape)
        return whole if dtype is None else whole.astype(dtype, copy=False)


def _within(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    """The elements [`low`, `high`) of an array that begins at `origin`."""
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


def _part(block: Block, low: Sequence[int], high: Sequence[int]) -> Array:
    if not low:
        return block.read(0, 1)
    first = block.start[0]
    rows = block.read(low[0] - first, high[0] - first)
    return rows[_within(low, high, [low[0], *block.start[1:]])]


def bounds(path: str, part: Slice) -> tuple[list[int] | None, list[int] | None]:
    """Start and stop of a part, None for one without elements. TypeError or ValueError, which name `path`, for what is
    no part."""
    if not is_array(part.array):
        raise TypeError(f"{path}: a part is an array or a tensor, not a {type(part.array).__name__}")
    found = tuple(part.array.shape)
    if math.prod(found) == 0:
        return None, None
    start = [int(at) for at in part.start]
    stop = [at + length for at, length in zip(start, found, strict=False)]
    fits = len(start) == len(found) == len(part.shape)
    if not fits or not all(0 <= a <= b <= n for a, b, n in zip(start, stop, part.shape, strict=True)):
        raise ValueError(f"{path}: {found} elements from {tuple(start)} are no part of an array of {part.shape}")
    return start, stop


def check_blocks(name: str, pieces: Sequence[list[Any]], shape: Sequence[int]) -> None:
    """ValueError unless the pieces [rank, start, stop] cover an array of `shape`, each element once."""
    held = 0
    for number, (rank, start, stop) in enumerate(pieces):
        held += math.prod(b - a for a, b in zip(start, stop, strict=True))
        for other, begin, end in pieces[:number]:
            if all(max(a, c) < min(b, d) for a, b, c, d in zip(start, stop, begin, end, strict=True)):
                raise ValueError(f"{name}: ranks {other} and {rank} have the same elements of {tuple(shape)}")
    if held != math.prod(shape):
        raise ValueError(f"{name}: nobody has {math.prod(shape) - held} of the elements of {tuple(shape)}")
