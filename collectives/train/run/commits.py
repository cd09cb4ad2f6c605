"""Copies of the state of a run in memory, with the parts that only one rank has on two ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..checkpoint.sharded import Piece, Shard, Stored

Path = tuple[Any, ...]  # keys and indices from the state down to one leaf


class LostState(RuntimeError):
    """Ranks died that together held the only copies of a part of the state: a run can only go on from a checkpoint."""


def copied(state: Any) -> Any:
    """A copy of a state: of its dicts, lists, arrays, tensors and `Shard`s."""
    return _changed(state, _copy)


def loadable(state: Any, wholes: Mapping[Path, Stored], path: Path = ()) -> Any:
    """A copy of a committed state for ``load_state_dict``, with `wholes` in the place of shards."""
    return _changed(state, lambda leaf, where: wholes[where] if isinstance(leaf, Shard) else _copy(leaf, where), path)


def shards(state: Any, path: Path = ()) -> Iterator[tuple[Path, Shard]]:
    """The shards of a committed state, each with its place."""
    items = state.items() if isinstance(state, Mapping) else enumerate(state) if isinstance(state, list | tuple) else ()
    for key, value in items:
        if isinstance(value, Shard):
            yield (*path, key), value
        else:
            yield from shards(value, (*path, key))


def put_together(held: list[list[tuple[Path, Shard]]]) -> dict[Path, Stored]:
    """The sharded leaves by place, from the shards that all ranks hold. Raises LostState if elements are missing."""
    found: dict[Path, dict[int, Shard]] = {}
    for path, shard in (entry for one in held for entry in one):
        parts = found.setdefault(path, {})
        if len(shard.array) or shard.start not in parts:
            parts[shard.start] = shard
    wholes: dict[Path, Stored] = {}
    for path, parts in found.items():
        read = [_piece(shard) for _, shard in sorted(parts.items())]
        stop = 0
        for piece in read:  # they overlap if a commit was cut short, which leaves shards of two cuts
            stop = max(stop, piece.stop) if piece.start <= stop else stop
        first = next(iter(parts.values()))
        if stop != first.total:
            where = ".".join(map(str, path))
            raise LostState(
                f"{where}: elements from {stop} on were on ranks that died together, those of the one and their copies "
                "on the other; go on from a checkpoint"
            )
        wholes[path] = Stored(read, first.total, first.array.dtype)
    return wholes


def _piece(shard: Shard) -> Piece:
    return Piece(shard.start, shard.start + len(shard.array), lambda low, high: shard.array[low:high])


def _changed(value: Any, change: Callable[[Any, Path], Any], path: Path = ()) -> Any:
    if isinstance(value, Shard):  # a tuple, too
        return change(value, path)
    if isinstance(value, Mapping):
        return {key: _changed(item, change, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(item, change, (*path, i)) for i, item in enumerate(value)]
    return change(value, path)


def _copy(leaf: Any, path: Path) -> Any:
    if isinstance(leaf, Shard):
        return Shard(np.array(leaf.array), int(leaf.start), int(leaf.total))
    if hasattr(leaf, "detach") and hasattr(leaf, "clone"):  # a tensor
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
