"""Files that are written whole: readers find what was there before, or all that is new."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = ["locked", "made_folder", "obstacle", "replacing", "say_where", "unwritable", "write_json"]

_numbers = itertools.count()
PATIENCE = 5.0  # seconds; a file is locked for much less, unless the process that locked it was killed


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO[Any]]:
    """Open ``path`` to be written whole, in ``mode`` "w" (UTF-8) or "wb"; OSError, which names it, if it cannot be.

    A regular file is replaced when the block ends, keeps its permissions, and stays as it was if the block raises. A
    symbolic link is followed. A device or a pipe, such as /dev/null and mostly /dev/stdout, is written to directly.
    """
    encoding = None if "b" in mode else "utf-8"
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, mode, encoding=encoding) as file:
            yield file
        return
    target = os.path.realpath(path)
    try:
        descriptor, beside = _new_beside(target)
    except OSError as error:
        error.filename = os.fspath(path)  # not the name of the new file
        raise
    try:
        with open(descriptor, mode, encoding=encoding) as file:
            if os.path.exists(target):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            yield file
        os.replace(beside, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError) and error.filename in (None, beside):
            error.filename = os.fspath(path)  # which writes to an open file do not know, as when a disk is full
        raise


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep ``path`` from others that change it within this context; OSError if its folder cannot be written.

    The file ``path``.lock is there meanwhile: on shared file systems of any kind, only one host can make it. A lock
    that stays for 5 s is taken for one of a killed process. A device or a pipe is not locked.
    """
    lock = f"{os.path.realpath(path)}.lock"
    if os.path.exists(path) and not os.path.isfile(path):
        yield
        return
    end = time.monotonic() + PATIENCE
    while True:
        try:
            os.close(os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            break
        except FileExistsError:
            if time.monotonic() > end:
                break
            time.sleep(0.01)
        except OSError as error:
            error.filename = os.fspath(path)  # not the name of the lock
            raise
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)


def _new_beside(target: str) -> tuple[int, str]:
    """A descriptor and the name of a new file in the folder of ``target``.

    A name that is there already is passed over: others may have put a link there, and other threads, or processes of
    other machines with the same process id, may write the same file at the same time.
    """
    folder, name = os.path.split(target)
    while True:
        beside = os.path.join(folder, f"{name[:50]}.{os.getpid()}.{next(_numbers)}")  # a name has at most 255 bytes
        with contextlib.suppress(FileExistsError):
            return os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), beside


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Write ``content`` as JSON by :func:`replacing`."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=1) + "\n")


def say_where(path: str | os.PathLike[str], mark: str = "") -> None:
    """Print that a command has written ``path``, after ``mark``; nothing for a device, which may be the output."""
    if os.path.isfile(path):
        print(f"{mark}wrote {os.fspath(path)}", flush=True)


def obstacle(path: str | os.PathLike[str]) -> str | None:
    """Why :func:`replacing` should not write ``path``, or cannot; None if it can. A pipe may have no reader."""
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    if os.path.isdir(target):
        return "it is a directory"
    if os.path.exists(path) and not os.path.isfile(path):
        if not stat.S_ISCHR(os.stat(path).st_mode):
            return "it is neither a file nor a character device"
        return None if os.access(path, os.W_OK) else "it is not writable"
    if not os.path.isdir(parent):
        return f"there is no directory {parent}"
    return None if os.access(parent, os.W_OK) else f"{parent} is not writable"


def unwritable(paths: Iterable[str | os.PathLike[str] | None]) -> str | None:
    """What is wrong with the first of ``paths`` that :func:`replacing` cannot write; None if it can write all.

    A path of None stands for no file.
    """
    for path in paths:
        if path is not None and (why := obstacle(path)) is not None:
            return f"cannot write {os.fspath(path)}: {why}"
    return None


def made_folder(path: str | os.PathLike[str]) -> Path:
    """``path``, made with its parents if it is not there; OSError if it cannot be, or if files cannot be made in it."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"cannot write to {folder}")
    return folder
