"""Copies of the state of a run in memory, with the parts that only one rank has on two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

Path = tuple[Any, ...]  # keys and indices from the state down to one leaf


class LostState(RuntimeError):
    """Ranks died that together held the only copies of a part of the state: a run can only go on from a checkpoint."""


class Piece:
    """This rank's copy of a part of a sharded leaf: elements ``start`` to ``start + len(array)`` of ``total``."""

    def __init__(self, array: Any, start: int, total: int) -> None:
        self.array, self.start, self.total = array, start, total


class Whole:
    """A sharded leaf after a loss of ranks, as its ``load_state_dict`` takes it: ``shape``, ``dtype``, ``read``."""

    def __init__(self, array: np.ndarray[Any, np.dtype[Any]]) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype

    def read(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[Any]]:
        """A copy of elements `start` to `stop`."""
        return self._array[start:stop].copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, np.dtype[Any]]:
        """A copy of the whole leaf."""
        return self._array.astype(dtype or self.dtype)


def copied(state: Any) -> Any:
    """A copy of a state: of its dicts, lists, arrays and tensors. A `Shard` becomes a `Piece`."""
    return _changed(state, _copy)


def loadable(state: Any, wholes: Mapping[Path, Whole], path: Path = ()) -> Any:
    """A copy of a committed state for ``load_state_dict``, with `wholes` in the place of pieces."""
    return _changed(state, lambda leaf, where: wholes[where] if isinstance(leaf, Piece) else _copy(leaf, where), path)


def pieces(state: Any, path: Path = ()) -> Iterator[tuple[Path, Piece]]:
    """The pieces of a committed state, each with its place."""
    items = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list | tuple) else ()
    for key, value in items:
        if isinstance(value, Piece):
            yield (*path, key), value
        else:
            yield from pieces(value, (*path, key))


def put_together(held: list[list[tuple[Path, Piece]]]) -> dict[Path, Whole]:
    """The sharded leaves by place, from the pieces that all ranks hold. Raises LostState if elements are missing."""
    found: dict[Path, dict[int, Piece]] = {}
    for path, piece in (entry for one in held for entry in one):
        parts = found.setdefault(path, {})
        if len(piece.array) or piece.start not in parts:
            parts[piece.start] = piece
    wholes: dict[Path, Whole] = {}
    for path, parts in found.items():
        stop, arrays = 0, list[Any]()
        for start, piece in sorted(parts.items()):
            end = start + len(piece.array)
            if start <= stop <= end:  # a commit that was cut short leaves pieces of two cuts
                arrays.append(np.asarray(piece.array)[stop - start :])
                stop = end
        total = next(iter(parts.values())).total
        if stop != total:
            where = ".".join(map(str, path))
            raise LostState(
                f"{where}: elements from {stop} on were on ranks that died together, those of the one and their copies "
                "on the other; go on from a checkpoint"
            )
        wholes[path] = Whole(np.concatenate(arrays))
    return wholes


def _changed(value: Any, change: Callable[[Any, Path], Any], path: Path = ()) -> Any:
    if isinstance(value, Mapping):
        return {key: _changed(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change, (*path, i)) for i, item in enumerate(value)]
    return change(value, path)


def _copy(leaf: Any, path: Path) -> Any:
    if isinstance(leaf, Piece):
        return leaf
    if hasattr(leaf, "start") and hasattr(leaf, "total") and hasattr(leaf, "array"):  # a Shard
        return Piece(np.array(leaf.array), int(leaf.start), int(leaf.total))
    if hasattr(leaf, "detach") and hasattr(leaf, "clone"):  # a tensor
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
