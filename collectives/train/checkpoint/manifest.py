"""``manifest.json``: what is in a checkpoint, and whether all of it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .files import Written, measure, write
from .slices import check_blocks
from .snapshot import Snapshot

NAME = "manifest.json"
SUM = "manifest.json.sha256"  # as the program sha256sum writes it
FORMAT = "collectives checkpoint"
VERSION = 1


class Corrupt(ValueError):
    """A checkpoint whose files are not what was written. An older one may be whole."""


class Part(NamedTuple):
    """What one rank has written: its file (None: it had nothing to write), its shards, and states of its own."""

    file: str | None
    written: Written
    shards: dict[str, list[Any]]
    own: dict[str, Any]


def file_name(rank: int) -> str:
    """The name of a rank's file in a checkpoint."""
    return f"rank-{rank:05d}.safetensors"


def check_cover(parts: Sequence[Part]) -> dict[str, list[list[Any]]]:
    """The pieces [rank, start, stop] of each vector or array that is stored in parts. ValueError if they do not cover
    it."""
    pieces: dict[str, list[list[Any]]] = {}
    first: dict[str, list[Any]] = {}
    for rank, part in enumerate(parts):
        for name, (kind, start, stop, total) in part.shards.items():
            if first.setdefault(name, [kind, total]) != [kind, total]:
                raise ValueError(f"{name}: rank {rank} has a part of {total} {kind}, other ranks {first[name][::-1]}")
            known = pieces.setdefault(name, [])
            if start is not None:
                known.append([rank, start, stop])
    for name, found in pieces.items():
        total = first[name][1]
        (check_blocks if isinstance(total, list) else _check_line)(name, found, total)
    return pieces


def _check_line(name: str, pieces: Sequence[list[int]], total: int) -> None:
    """ValueError unless the pieces cover a vector of `total` elements."""
    end = 0
    for rank, start, stop in sorted(pieces, key=lambda piece: piece[1:]):
        if start == stop:  # it covers nothing, wherever it lies
            continue
        if start != end:
            what = "nobody has" if start > end else "two ranks have"
            raise ValueError(f"{name}: {what} elements {min(start, end)} to {max(start, end)} (rank {rank})")
        end = stop
    if end != total:
        raise ValueError(f"{name}: nobody has elements {end} to {total}")


def write_manifest(folder: Path, snapshot: Snapshot, parts: Sequence[Part]) -> None:
    """Write the manifest of a checkpoint whose other files are in `folder`, and its sum. OSError if it cannot be.

    ValueError if the ranks' parts of a vector do not cover it.
    """
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "step": snapshot.step,
        "ranks": len(parts),
        "info": snapshot.info,
        "files": {part.file: part.written._asdict() for part in parts if part.file is not None},
        "pieces": check_cover(parts),
        "states": snapshot.trees,
        "own": [part.own for part in parts],
    }
    text = json.dumps(manifest, allow_nan=False).encode() + b"\n"
    written = write(folder / NAME, [text])
    write(folder / SUM, [f"{written.sha256}  {NAME}\n".encode()])


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the checkpoint in `folder`.

    `Corrupt`, a ValueError, if it is not what was written; ValueError if it is of something else or of a newer
    version; OSError if it cannot be read.
    """
    path = folder / NAME
    try:
        text, expected = path.read_bytes(), (folder / SUM).read_text(errors="replace").split()
    except FileNotFoundError as error:
        if path.exists():
            raise Corrupt(f"{folder} has no {SUM}") from error
        if (folder / SUM).exists() or any(folder.glob("rank-*.safetensors")):  # someone began to remove it
            raise Corrupt(f"{folder} has no {NAME}") from error
        raise ValueError(f"{folder} is not a checkpoint: it has no {NAME}") from error
    if expected[:1] != [measure(path).sha256]:
        raise Corrupt(f"{path} is corrupt: its SHA-256 is not that in {SUM}")
    try:
        manifest = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{path} is not the manifest of a checkpoint of this library")
    if manifest.get("version") != VERSION:
        raise ValueError(f"{folder} has format {manifest.get('version')}; this version of the library reads {VERSION}")
    _check_shape(path, manifest)
    return manifest


def _check_shape(path: Path, manifest: Mapping[str, Any]) -> None:
    kinds = {"step": int, "ranks": int, "info": dict, "files": dict, "pieces": dict, "states": dict, "own": list}
    for key, kind in kinds.items():
        if not isinstance(manifest.get(key), kind):
            raise ValueError(f"{path} has no proper {key!r}")
    if len(manifest["own"]) != manifest["ranks"] or set(manifest["files"]) - set(
        map(file_name, range(manifest["ranks"]))
    ):
        raise ValueError(f"{path} names files that are not a checkpoint's")


def check_file(folder: Path, name: str, expected: Mapping[str, Any]) -> None:
    """Raise `Corrupt` unless the file `name` in `folder` is what the manifest says; OSError if it cannot be read."""
    path = folder / name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise Corrupt(f"{path} is missing") from None
    if size != expected.get("size"):
        raise Corrupt(f"{path} has {size} bytes; {expected.get('size')} were written")
    if measure(path).sha256 != expected.get("sha256"):
        raise Corrupt(f"{path} is corrupt: its SHA-256 is not that in {NAME}")
