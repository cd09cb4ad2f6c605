"""Files that are written whole: readers find what was there before, or all that is new."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import IO, Any

__all__ = ["obstacle", "replacing"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` to be written whole, in ``mode`` "w" (UTF-8) or "wb"; OSError if it cannot be.

    A regular file is replaced when the block ends, keeps its permissions, and stays as it was if the block raises. A
    symbolic link is followed. A character device, such as /dev/null, is written to directly.
    """
    target, encoding = os.path.realpath(path), None if "b" in mode else "utf-8"
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, mode, encoding=encoding) as file:
            yield file
        return
    beside = f"{target}.{os.getpid()}"
    try:
        with open(beside, mode, encoding=encoding) as file:
            if os.path.exists(target):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            yield file
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def obstacle(path: str | os.PathLike[str]) -> str | None:
    """Why :func:`replacing` cannot write ``path``, or None."""
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    if os.path.isdir(target):
        return "it is a directory"
    if os.path.exists(target) and not os.path.isfile(target):
        if not stat.S_ISCHR(os.stat(target).st_mode):
            return "it is neither a file nor a character device"
        return None if os.access(target, os.W_OK) else "it is not writable"
    if not os.path.isdir(parent):
        return f"there is no directory {parent}"
    return None if os.access(parent, os.W_OK) else f"{parent} is not writable"
