"""Checkpoints read back, by any number of ranks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..agree import communicator, on_rank_0, together
from ..tensors import as_tensor
from .arrays import type_of
from .manifest import NAME, Corrupt, check_file, file_name, read_manifest
from .sharded import Piece, Stored
from .slices import Block, StoredArray
from .tensor_file import Place, places, read_tensor
from .tree import unpack


class Checkpoint:
    """A checkpoint whose files are whole: the step at which it was written, ``info``, and states by name.

    ``ranks`` is the number of ranks that wrote it.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], rank: int) -> None:
        self.folder, self.step, self.ranks = folder, int(manifest["step"]), int(manifest["ranks"])
        self.info: dict[str, Any] = manifest["info"]
        self._manifest, self._rank = manifest, rank
        self._places: dict[str, dict[str, Place]] = {}

    @property
    def names(self) -> set[str]:
        """The names of the objects whose states it has."""
        return {*self._manifest["states"], *self._manifest["own"][0]}

    def per_rank(self, name: str) -> bool:
        """Whether each rank has saved a state of its own under `name`."""
        return name in self._manifest["own"][0]

    def state(self, name: str, rank: int | None = None, *, tensors: bool = False) -> Any:
        """The state that was saved under `name`; of one that each rank has saved for itself, that of `rank`.

        `rank` is this rank by default. Arrays and tensors are new NumPy arrays, or, with `tensors`, torch tensors where
        tensors were saved. A vector that was saved as shards is a `Stored`, an array in slices a `StoredArray`.
        ValueError if there is no such state, or if a file does not fit the manifest.
        """
        rank = self._rank if rank is None else rank
        if name not in self.names:
            raise ValueError(f"{self.folder} has no state {name!r}; it has {', '.join(sorted(self.names))}")
        if not self.per_rank(name):
            return self._unpacked(self._manifest["states"][name], 0, tensors)
        if not 0 <= rank < self.ranks:
            raise ValueError(f"{self.folder} has states {name!r} of {self.ranks} ranks, not of rank {rank}")
        return self._unpacked(self._manifest["own"][rank][name], rank, tensors)

    def _unpacked(self, tree: Any, rank: int, tensors: bool) -> Any:
        def give(entry: Any) -> Any:
            try:
                return self._array(entry, rank, tensors)
            except (KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self.folder}: {str(entry)[:80]} is no array of it: {error!r}") from error

        return unpack(tree, give)

    def _array(self, entry: dict[str, Any], rank: int, tensors: bool) -> Any:
        dtype = type_of(entry["type"])
        if "shard" in entry:
            pieces = self._manifest["pieces"][entry["shard"]]
            if isinstance(entry["total"], list):
                blocks = [self._block(entry["shard"], owner, start, stop, dtype) for owner, start, stop in pieces]
                return StoredArray(blocks, tuple(entry["total"]), dtype)
            found = [self._piece(entry["shard"], owner, start, stop, dtype) for owner, start, stop in pieces]
            return Stored(found, entry["total"], dtype)
        file = file_name(rank)
        place = self._places_in(file)[entry["name"]]
        array = read_tensor(self.folder / file, place, dtype, tuple(entry["shape"]))
        if entry.get("scalar"):
            return array[()]
        return as_tensor(array) if tensors and entry.get("tensor") else array

    def _piece(self, name: str, rank: int, start: int, stop: int, dtype: Any) -> Piece:
        path, place = self.folder / file_name(rank), self._places_in(file_name(rank))[name]
        if place.size != (stop - start) * dtype.itemsize:
            raise ValueError(f"{path}: {name} has {place.size} bytes for {stop - start} elements of {dtype}")

        def read(low: int, high: int) -> Any:
            part = Place(place.offset + low * dtype.itemsize, (high - low) * dtype.itemsize)
            return read_tensor(path, part, dtype, (high - low,))

        return Piece(start, stop, read)

    def _block(self, name: str, rank: int, start: list[int], stop: list[int], dtype: Any) -> Block:
        path, place = self.folder / file_name(rank), self._places_in(file_name(rank))[name]
        shape = tuple(b - a for a, b in zip(start, stop, strict=True))
        row = math.prod(shape[1:]) * dtype.itemsize
        if place.size != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{path}: {name} has {place.size} bytes for {shape} elements of {dtype}")

        def read(low: int, high: int) -> Any:
            if not shape:
                return read_tensor(path, place, dtype, ())
            part = Place(place.offset + low * row, (high - low) * row)
            return read_tensor(path, part, dtype, (high - low, *shape[1:]))

        return Block(tuple(start), tuple(stop), read)

    def _places_in(self, file: str) -> dict[str, Place]:
        if file not in self._places:
            self._places[file] = places(self.folder / file)
        return self._places[file]


def load(folder: str | Path, comm: Any = None) -> Checkpoint:
    """The checkpoint in `folder`, whose files are checked before anything of them is used. Collective over `comm`
    (default: the world).

    Each rank checks some of the files, which all ranks must be able to read. On all ranks alike: `Corrupt`, which is a
    ValueError, if a file is not what was written; ValueError for a folder that is no checkpoint or one of a newer
    format; OSError if files cannot be read.
    """
    folder, comm = Path(folder), communicator(comm)
    manifest: dict[str, Any] = on_rank_0(comm, lambda: read_manifest(folder))
    found = list(manifest["files"].items())

    def check() -> str | None:
        try:
            for name, expected in found[comm.rank :: comm.size]:
                check_file(folder, name, expected)
        except Corrupt as error:
            if not (folder / NAME).exists():
                what = f"{folder / NAME} is there for rank 0, and not for rank {comm.rank}: all ranks need one folder"
                raise FileNotFoundError(what) from None
            return str(error)
        return None

    corrupt = [text for text in comm.allgather(together(comm, check)) if text is not None]
    if corrupt:
        raise Corrupt(corrupt[0])
    return Checkpoint(folder, manifest, comm.rank)
