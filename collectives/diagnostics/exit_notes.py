"""The note that a process leaves when its program ends: how and where it ended, and after how many calls.

A rank whose program has ended is in MPI_Finalize, where it answers no questions. So it leaves a note in a file in
memory (memfd), which neighbours read through /proc as long as the process exists. The note is final once MPI_Finalize
has begun. The file holds one byte of state, the length of the note in 8 bytes (little-endian), and the note as JSON. It
is sealed, so that only its process can change it, through a mapping that is older than the seals.
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
from .diagnosis import is_foreign, position

__all__ = ["Note", "Reader", "ending", "finalizing", "leave", "note", "uncaught"]

OPEN, LEAVING, FINAL = b"0", b"1", b"2"  # states: the first byte of the file
NAME = "collectives-note"
MEMORY = f"/memfd:{NAME}"  # what a descriptor of a note is a link to
HEAD = 9
LONGEST = 1 << 20  # bytes of the file, which is sparse
_NOEXEC_SEAL = 0x8  # flag of memfd_create since Linux 6.3
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_SEAL_FUTURE_WRITE = 0x10  # a seal since Linux 5.1

_lock = threading.Lock()
_file = -1
_memory: mmap.mmap | None = None  # the mapping of the file; None in a forked child


class Note(NamedTuple):
    """A process's note: whether it surely makes no more calls, how its program ended, its calls by communicator."""

    final: bool
    how: str
    begun: dict[str, int]


def note() -> int:
    """File descriptor of this process's note, which the first call makes; -1 if the system does not allow one."""
    global _file, _memory
    with _lock:
        if _file < 0:
            with contextlib.suppress(OSError):
                _file, _memory = _make()
                _core.leave_note(np.frombuffer(_memory, np.uint8))
    return _file


def _make() -> tuple[int, mmap.mmap]:
    """Make the file; returns its descriptor and the only mapping through which it can be written."""
    try:
        file = os.memfd_create(NAME, os.MFD_CLOEXEC | _NOEXEC_SEAL)  # this flag allows seals, too
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
        file = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, LONGEST)
        memory = mmap.mmap(file, LONGEST)
        memory[:1] = OPEN
        with contextlib.suppress(OSError):  # Linux older than 5.1
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEAL_FUTURE_WRITE)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    return file, memory


def _after_fork() -> None:
    """In a forked child: forget the note, which is the parent's."""
    global _file, _lock, _memory
    _lock = threading.Lock()
    _file, _memory = -1, None
    _core.leave_note(None)


os.register_at_fork(after_in_child=_after_fork)


def uncaught() -> BaseException | None:
    """The exception that ended the program, if nothing caught it.

    Test runners and shells put exceptions that they have caught in the same place. There the first frame of the
    traceback has a caller, or the program goes on.
    """
    error: BaseException | None = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = None if error is None else error.__traceback__
    caught = hasattr(sys, "ps1") or (trace is not None and trace.tb_frame.f_back is not None)
    return None if caught else error


def ending() -> str:
    """How the program ends, as text; to be called at interpreter exit."""
    error = uncaught()
    if error is not None:
        return f"raised {type(error).__name__}{_raised_at(error.__traceback__)} and ended"
    main = getattr(sys.modules.get("__main__"), "__file__", None) or sys.argv[0]  # __file__ may be gone by now
    return f"ended its program{f' ({os.path.abspath(main)})' if os.path.exists(main) else ''}"


def _raised_at(trace: Any) -> str:
    place = ""
    while trace is not None:
        frame = trace.tb_frame
        if not place or not is_foreign(frame):
            place = f" at {frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def finalizing() -> str:
    """How the program ends, as text; to be called within MPI_Finalize that the program calls itself."""
    return f"called MPI_Finalize at {position(threading.get_ident())}"


def leave(how: str, begun: dict[str, int]) -> None:
    """Write the note: how the program ended, and the number of calls by communicator. Only the first call counts."""
    if _memory is None or _memory[:1] != OPEN:
        return
    told = json.dumps([how, begun]).encode()
    if len(told) > LONGEST - HEAD:
        told = json.dumps([how, {}]).encode()
    with contextlib.suppress(OSError):  # no memory
        os.posix_fallocate(_file, 0, HEAD + len(told))
        _memory[HEAD : HEAD + len(told)] = told
        _memory[1:HEAD] = len(told).to_bytes(HEAD - 1, "little")
        _memory[:1] = LEAVING


class Reader:
    """Reads a neighbour's note: file descriptor ``number`` of process ``pid``, which may end after this is made."""

    def __init__(self, pid: int, number: int):
        self._path = f"/proc/{pid}/fd/{number}"
        self._fd, self._known = -1, number >= 0
        if self._known:
            with contextlib.suppress(OSError):  # the process has ended, or its /proc directory is closed to this one
                if os.readlink(self._path).startswith(MEMORY):  # else another program that the process runs has it
                    self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Note | None:
        """The note, or None if the process has not left one."""
        if self._fd < 0:
            return None
        head = os.pread(self._fd, HEAD, 0)
        if head[:1] not in (LEAVING, FINAL):
            return None
        length = int.from_bytes(head[1:], "little")
        try:
            how, begun = json.loads(os.pread(self._fd, min(length, LONGEST), HEAD))
        except (ValueError, TypeError):  # MPI_Finalize has begun before a note was written
            how, begun = "is in MPI_Finalize", {}
        return Note(head[:1] == FINAL, how, begun)

    def runs_on(self) -> bool:
        """Whether the process still has the file open; False after ``exec`` of another program and after its end."""
        try:
            return not self._known or os.readlink(self._path).startswith(MEMORY)
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close  # a request that was tested and then dropped, or completed by MPI, does not call close
