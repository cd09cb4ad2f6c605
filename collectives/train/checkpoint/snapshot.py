"""A copy of the state of a run: what this rank writes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..tensors import Array, is_tensor
from .arrays import as_numpy, copied, is_array, type_name
from .sharded import Shard
from .slices import Slice, bounds
from .tree import pack


@dataclass
class Snapshot:
    """Copies of the arrays that a rank writes, and the JSON values that name them.

    ``trees`` are the states of replicated objects by name (on rank 0 only), ``own`` those of objects whose state is
    each rank's own. ``shards`` says which elements this rank has of each vector or array in parts: [type,
    start, stop, total]. Of an array the last three are lists; start and stop are None if this rank has nothing of it.
    ``tensors`` are the arrays by their names in the rank's file. ``info`` is a dict of JSON values about the whole run.
    """

    step: int
    info: dict[str, Any]
    trees: dict[str, Any] = field(default_factory=dict)
    own: dict[str, Any] = field(default_factory=dict)
    shards: dict[str, list[Any]] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays."""
        return sum(array.nbytes for array in self.tensors.values())


def take(states: Mapping[str, Any], per_rank: set[str], rank: int, step: int, info: dict[str, Any]) -> Snapshot:
    """Copy the `states` (by name) as far as `rank` writes them; those in `per_rank` are written by every rank.

    TypeError or ValueError, which names the place, for what cannot be saved.
    """
    snapshot = Snapshot(step, info)
    for name, state in states.items():
        if name in per_rank:
            snapshot.own[name] = pack(state, _Keeper(snapshot, writes=True), name)
        else:
            tree = pack(state, _Keeper(snapshot, writes=rank == 0), name)
            if rank == 0:
                snapshot.trees[name] = tree
    return snapshot


class _Keeper:
    """Takes arrays into a snapshot: all of them if this rank writes them, else only its shards."""

    def __init__(self, snapshot: Snapshot, *, writes: bool) -> None:
        self._into, self._writes = snapshot, writes

    def __call__(self, path: str, leaf: Any) -> dict[str, Any]:
        if isinstance(leaf, Shard):
            return self._shard(path, leaf)
        if isinstance(leaf, Slice):
            return self._slice(path, leaf)
        try:
            array = as_numpy(leaf)
            kind = type_name(array.dtype)
        except TypeError as error:
            raise TypeError(f"{path}: {error}") from None
        kept: dict[str, Any] = {"type": kind, "shape": list(array.shape)}
        if is_tensor(leaf):
            kept["tensor"] = True
        if isinstance(leaf, np.generic):
            kept["scalar"] = True
        if self._writes:
            kept["name"] = self._keep(path, array)
        return kept

    def _shard(self, path: str, shard: Shard) -> dict[str, Any]:
        if not is_array(shard.array):
            raise TypeError(f"{path}: the part of a vector is an array or a tensor, not a {type(shard.array).__name__}")
        array = as_numpy(shard.array)
        start, stop, total = int(shard.start), int(shard.start) + array.size, int(shard.total)
        if array.ndim != 1 or not 0 <= start <= stop <= total:
            raise ValueError(f"{path}: {array.shape} elements from {start} are no part of a vector of {total}")
        name = self._keep(path, array)
        self._into.shards[name] = [type_name(array.dtype), start, stop, total]
        return {"type": type_name(array.dtype), "shard": name, "total": total}

    def _slice(self, path: str, part: Slice) -> dict[str, Any]:
        array = as_numpy(part.array)
        name = self._keep(path, array)
        kind, shape = type_name(array.dtype), [int(length) for length in part.shape]
        self._into.shards[name] = [kind, *bounds(path, part), shape]
        return {"type": kind, "shard": name, "total": shape}

    def _keep(self, path: str, array: Array) -> str:
        name, number = path, 1
        while name in self._into.tensors:  # keys that contain "/" may give two places one path
            number += 1
            name = f"{path}#{number}"
        self._into.tensors[name] = copied(array)
        return name
