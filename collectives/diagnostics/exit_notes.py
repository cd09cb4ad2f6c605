"""What a process says when its program ends, for those who may wait for it: how, where, and after how many calls.

A rank that has ended its program sits in MPI_Finalize, where it answers no questions. So it leaves a note in a file in
memory, which neighbours read through /proc while the process is there. The note is final when MPI_Finalize has begun.

The file is one byte of state, the length of the note in 8 bytes, the note. It is sealed, so that only the mapping that
its process has made before can change it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import sys
import threading
from typing import Any, NamedTuple

import numpy as np

from ..core import _core
from .diagnosis import foreign, position

__all__ = ["Note", "Reader", "ending", "finalizing", "leave", "note", "uncaught"]

OPEN, LEAVING, FINAL = b"0", b"1", b"2"  # the first byte
NAME = "collectives-note"
HEAD = 9
LONGEST = 1 << 20  # bytes of the file, most of which never have memory
_NOEXEC_SEAL = 0x8  # of memfd_create, from Linux 6.3 on
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10  # from Linux 5.1 on

_lock = threading.Lock()
_file = -1
_memory: mmap.mmap | None = None  # the file's, while this process may write to it


class Note(NamedTuple):
    """What a process has left: whether it makes no more calls, for sure; how it ended; its calls on communicators."""

    final: bool
    how: str
    begun: dict[str, int]


def note() -> int:
    """The number of the file of this process's note, which is made at the first call; -1 where there can be none."""
    global _file, _memory
    with _lock:
        if _file < 0:
            with contextlib.suppress(OSError):
                _file, _memory = _make()
                _core.leave_note(np.frombuffer(_memory, np.uint8))
    return _file


def _make() -> tuple[int, mmap.mmap]:
    """A file in memory, and its memory, by which alone it can be written."""
    try:
        file = os.memfd_create(NAME, os.MFD_CLOEXEC | _NOEXEC_SEAL)  # which can be sealed, too
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        file = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, LONGEST)
        memory = mmap.mmap(file, LONGEST)
        memory[:1] = OPEN
        with contextlib.suppress(OSError):  # before Linux 5.1
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    return file, memory


def _after_fork() -> None:
    """The note stays the parent's."""
    global _file, _lock, _memory
    _lock = threading.Lock()
    _file, _memory = -1, None
    _core.leave_note(None)


os.register_at_fork(after_in_child=_after_fork)


def uncaught() -> BaseException | None:
    """The exception that ended the program, if nothing caught it."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def ending() -> str:
    """How the program ends, as this is called at its end."""
    error = uncaught()
    if error is not None:
        return f"raised {type(error).__name__}{_raised_at(error.__traceback__)} and ended"
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]  # the former is gone after a return
    return f"ended its program{f' ({os.path.abspath(main)})' if os.path.exists(main) else ''}"


def _raised_at(trace: Any) -> str:
    place = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not place or not foreign(file):
            place = f" at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def finalizing() -> str:
    """How the program ends, as this is called in MPI_Finalize, which the program calls itself."""
    return f"called MPI_Finalize at {position(threading.get_ident())}"


def leave(how: str, begun: dict[str, int]) -> None:
    """Leave the note; who has left one already keeps the first."""
    if _memory is None or _memory[:1] != OPEN:
        return
    told = json.dumps([how, begun]).encode()
    if len(told) > LONGEST - HEAD:
        told = json.dumps([how, {}]).encode()
    with contextlib.suppress(OSError):  # there is no memory for it
        os.posix_fallocate(_file, 0, HEAD + len(told))
        _memory[HEAD : HEAD + len(told)] = told
        _memory[1:HEAD] = len(told).to_bytes(HEAD - 1, "little")
        _memory[:1] = LEAVING


class Reader:
    """Reads the note of a neighbour, also when its process has ended since the reader was made."""

    def __init__(self, pid: int, number: int):
        self._path = f"/proc/{pid}/fd/{number}"
        self._fd, self._known = -1, number >= 0
        if self._known:
            with contextlib.suppress(OSError):  # it has ended, or this process may not look there
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Note | None:
        """The note, or None while there is none."""
        if self._fd < 0:
            return None
        head = os.pread(self._fd, HEAD, 0)
        if head[:1] not in (LEAVING, FINAL):
            return None
        length = int.from_bytes(head[1:], "little")
        try:
            how, begun = json.loads(os.pread(self._fd, min(length, LONGEST), HEAD))
        except (ValueError, TypeError):  # there was no note yet
            how, begun = "is in MPI_Finalize", {}
        return Note(head[:1] == FINAL, how, begun)

    def runs_on(self) -> bool:
        """Whether the process still has the file open: a program that it became by ``exec`` has not."""
        try:
            return not self._known or os.readlink(self._path).startswith(f"/memfd:{NAME}")
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Read no more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # a request that is tested, and then dropped or waited for by MPI, leaves its looks behind
