"""Checkpoints written whole: each rank its file, beside; then the manifest; then one rename."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..agree import communicator, on_rank_0, together
from .files import Written, sync_folder
from .manifest import Part, file_name, write_manifest
from .snapshot import Snapshot, take
from .tensor_file import write_tensors


def beside(folder: Path) -> Path:
    """Where a checkpoint is written that is to become `folder`."""
    return folder.with_name(f".writing-{folder.name}")


def write_part(folder: Path, rank: int, snapshot: Snapshot) -> Part:
    """Write what `rank` has of a checkpoint beside `folder`, and let go of the snapshot's arrays.

    OSError if the disk does not take it.
    """
    where = beside(folder)
    os.makedirs(where, exist_ok=True)
    name, written = None, Written(0, "")
    if snapshot.tensors:
        name = file_name(rank)
        written = write_tensors(where / name, snapshot.tensors)
        sync_folder(where)
        snapshot.tensors.clear()
    return Part(name, written, snapshot.shards, snapshot.own)


def commit(folder: Path, snapshot: Snapshot, parts: Sequence[Part]) -> None:
    """Make the checkpoint `folder` of what all ranks have written beside it; `parts` is in the order of ranks.

    It appears by one rename, when the disk has all of it. OSError if a rank's file is not there, or the disk does not
    take the rest; ValueError if the ranks' parts of a vector do not cover it.
    """
    where = beside(folder)
    for rank, part in enumerate(parts):
        if part.file is not None and _size(where / part.file) != part.written.size:
            raise OSError(f"the file of rank {rank} is not in {where} for rank 0: all ranks need one folder")
    write_manifest(where, snapshot, parts)
    sync_folder(where)
    os.rename(where, folder)
    sync_folder(folder.parent)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def remove(folder: Path) -> None:
    """Remove a folder with its files, if it is there. A folder that cannot be removed is left."""
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def save(
    folder: str | Path,
    states: Mapping[str, Any],
    comm: Any = None,
    *,
    step: int = 0,
    per_rank: Collection[str] = (),
    info: Mapping[str, Any] | None = None,
) -> None:
    """Write the `states` (by name) of all ranks as the checkpoint `folder`, which must not exist yet. Collective over
    `comm` (default: the world).

    Arrays, tensors and numbers are rank 0's; `Shard`s and `Slice`s are each rank's, and so are all states named in
    `per_rank`. `info` is a dict of JSON values. All ranks need the same folder. On all ranks alike: TypeError or
    ValueError for what cannot be saved, OSError if the disk does not take it; nothing is left then.
    """
    folder, comm = Path(folder), communicator(comm)

    def write() -> tuple[Snapshot, Part]:
        if folder.exists():
            raise FileExistsError(f"{folder} exists")
        snapshot = take(states, set(per_rank), comm.rank, step, dict(info or {}))
        return snapshot, write_part(folder, comm.rank, snapshot)

    on_rank_0(comm, lambda: remove(beside(folder)))  # of a process that ended
    try:
        snapshot, part = together(comm, write)
        parts: list[Part] = comm.allgather(part)
        on_rank_0(comm, lambda: commit(folder, snapshot, parts))
    except (OSError, TypeError, ValueError):
        on_rank_0(comm, lambda: remove(beside(folder)))
        raise
