"""Files that are on the disk when a function returns, and their SHA-256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

AT_ONCE = 1 << 24  # bytes of one call


class Written(NamedTuple):
    """The size of a file in bytes, and its SHA-256 in hexadecimal digits."""

    size: int
    sha256: str


def write(path: Path, parts: Iterable[Any]) -> Written:
    """Make the file `path` anew from bytes-like `parts`, and wait until the disk has it. OSError if it cannot be."""
    digest, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for part in parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), AT_ONCE):
                piece = view[start : start + AT_ONCE]
                digest.update(piece)
                size += len(piece)
                while len(piece):  # a disk that fills up takes a part of it first
                    piece = piece[os.write(descriptor, piece) :]
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)  # which the system's functions for an open file do not know
        raise
    finally:
        os.close(descriptor)
    return Written(size, digest.hexdigest())


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names of the files in the folder `path`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def measure(path: Path) -> Written:
    """Size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(AT_ONCE):
            digest.update(piece)
            size += len(piece)
    return Written(size, digest.hexdigest())
