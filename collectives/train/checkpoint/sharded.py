"""One vector in parts: what a rank hands over of it, and what is read of it later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Shard(NamedTuple):
    """This rank's part of a vector: ``array`` (1-D) is its elements [``start``, ``start + len(array)``) of ``total``.

    The parts of all ranks must cover the vector, without overlap. A part may be empty.
    """

    array: Any
    start: int
    total: int


class Piece(NamedTuple):
    """Elements [``start``, ``stop``) of a stored vector; ``read(i, j)`` gives the piece's own elements [i, j)."""

    start: int
    stop: int
    read: Callable[[int, int], Array]


class Stored:
    """A vector in a checkpoint that was saved as `Shard`s, of which a rank reads the part that it needs.

    ``shape`` is (elements,). ``np.asarray(stored)`` is the whole vector. Files are read when elements are asked for.
    """

    def __init__(self, pieces: Sequence[Piece], total: int, dtype: np.dtype[Any]) -> None:
        self._pieces = sorted(pieces, key=lambda piece: piece.start)
        self.shape = (total,)
        self.dtype = dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Stored({self.shape[0]} elements of {self.dtype})"

    def read(self, start: int, stop: int) -> Array:
        """A new array of the elements [`start`, `stop`). ValueError unless 0 <= start <= stop <= len."""
        if not 0 <= start <= stop <= len(self):
            raise ValueError(f"elements {start} to {stop} of a stored vector of {len(self)}")
        out = np.empty(stop - start, self.dtype)
        for piece in self._pieces:
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                out[low - start : high - start] = piece.read(low - piece.start, high - piece.start)
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a stored vector is read from files, which is a copy")
        whole = self.read(0, len(self))
        return whole if dtype is None else whole.astype(dtype, copy=False)
