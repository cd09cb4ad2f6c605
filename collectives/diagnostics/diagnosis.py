"""What a rank tells others about its calls, and what the answers of several ranks mean together.

Calls that end in time pay nothing for this: file and line are read from the Python frames only when they are needed.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Collection
from types import FrameType
from typing import NamedTuple

from ..arguments.signature import Call, differ, signature
from ..core import _core
from ..errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure

__all__ = [
    "Answer", "activity", "foreign", "is_foreign", "libraries", "lines", "missing", "outer_position", "overdue",
    "position", "verdict", "waiting_for",
]  # fmt: skip

MOST = 16  # most ranks that an error message describes

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
libraries: list[str] = []  # directories of libraries that make calls for the program, such as torch
_KINDS = {kind.__name__: kind for kind in (CollectiveMismatch, CollectiveTimeout, PeerFailure)}


class Answer(NamedTuple):
    """What a rank tells of its calls on one communicator.

    ``call`` is the call under way, or the one that failed; ``begun`` the number of calls so far; ``place`` the file and
    line in the program. ``failure`` is the class name of the error that broke the communicator, and the first line of
    the error that caused it; the rank has then given up its calls from number ``gave_up`` on. ``left`` is a text that
    says how the program ended, if it has.
    """

    rank: int
    call: Call | None = None
    begun: int = 0
    place: str = ""
    failure: tuple[str, str] | None = None
    silent: str = ""  # why there is no answer
    left: str = ""
    gave_up: int = 0
    then: Call | None = None  # the call whose number was asked for, if it has begun

    def __str__(self) -> str:
        if self.silent:
            return f"rank {self.rank}: {self.silent}"
        if self.left:
            return f"rank {self.rank}: {self.left}, after {self.begun} calls"
        what = str(self.call) if self.call else f"in no collective of this communicator, after {self.begun} calls"
        failed = f"; raised {self.failure[0]}" if self.failure else ""
        return f"rank {self.rank}: {what}, at {self.place}{failed}"


_core.install(signature)


def position(thread: int | None = None) -> str:
    """``file:line`` of the innermost frame of ``thread`` (default: the main one) that belongs to the program.

    Frames of this package and of Python's library do not count. A thread without a frame of the program gives the place
    of the main thread; if that has none either, the innermost frame counts.
    """
    frames = _core.current_frames()
    try:
        return _place_among(frames, thread)
    finally:
        frames.clear()  # this frame is among them: the cycle would keep the program's arrays in memory


def _place_among(frames: dict[int, FrameType], thread: int | None) -> str:
    main = threading.main_thread().ident or 0
    frame = frames.get(main if thread is None else thread)
    found = _of_the_program(frame) or _of_the_program(frames.get(main)) or frame
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else "the end of the program"


def activity(threads: Collection[int]) -> dict[int, tuple[bool, object]]:
    """For each of ``threads``: whether it runs code of the program, and a value that changes as it runs Python code.

    A thread that waits in this package runs code of the program while a user-defined op or a signal handler of the
    program is under way: from the innermost frame outwards, the program's then come before those of this package.
    """
    frames = _core.current_frames()
    try:
        return {thread: _activity_of(frames.get(thread)) for thread in threads}
    finally:
        frames.clear()  # this frame is among them


def _activity_of(frame: FrameType | None) -> tuple[bool, object]:
    spot = None if frame is None else (frame.f_code, frame.f_lasti)
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        if not is_foreign(frame):
            return True, spot
        frame = frame.f_back
    return frame is None, spot


def outer_position() -> str | None:
    """``file:line`` of the program's outer call of this package, if this thread is in a nested one; else None.

    The innermost frames are this package's, then come the handler's, some of which may be Python's own library's, then
    this package's.
    """
    frame: FrameType | None = sys._getframe()
    for within in (True, False):
        while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE) == within:
            frame = frame.f_back
    found = _of_the_program(frame)
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else None


def _of_the_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and is_foreign(frame):
        frame = frame.f_back
    return frame


def is_foreign(frame: FrameType) -> bool:
    """As `foreign`; nor do generated methods count, those of named tuples and of this package's data classes."""
    if frame.f_code.co_filename == "<string>":  # also of ``python -c``, which is the program
        return str(frame.f_globals.get("__name__")).startswith(("namedtuple_", __name__.partition(".")[0] + "."))
    return foreign(frame.f_code.co_filename)


def foreign(file: str) -> bool:
    """Whether ``file`` belongs to this package, Python's library, or a library that makes calls for the program."""
    own = file.startswith((_PACKAGE, "<frozen ", *libraries))
    return own or (file.startswith(_STANDARD) and "-packages" + os.sep not in file)


def verdict(mine: Call, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
    """Why the call ``mine`` will never end, according to another rank's ``answer``; None as long as it may.

    The result is an exception class, its message, and the message of the other rank's error that caused it, or None.
    """
    call = answer.call
    if answer.failure is not None and (mine.number is None or mine.number >= answer.gave_up):
        kind, text = answer.failure
        why = f"rank {answer.rank} gave up at {answer.place}: {kind}: {text}"
        return _KINDS.get(kind, CollectiveError), why, text
    if call is not None and differ(mine, call):
        return CollectiveMismatch, f"rank {answer.rank} is in another call", None
    if answer.then is not None and differ(mine, answer.then):
        return CollectiveMismatch, f"rank {answer.rank} has made another call instead: {answer.then}", None
    return None


def missing(behind: list[int], told: list[Answer]) -> list[int]:
    """The ranks that keep a call from ending: those in ``behind`` that have not begun the call.

    ``behind`` are the ranks that the call waits for, ``told`` this rank's answer and then those of others. A rank that
    has begun the call may wait for others itself. So if all in ``behind`` have begun it, the result is the other ranks
    that have not, and if there are none, ``behind``.
    """
    mine = told[0].call
    absent = [answer.rank for answer in told[1:] if mine is not None and not _has_come(mine, answer)]
    stuck = [answer.rank for answer in told[1:] if answer.left]  # they may have begun it before their program ended
    come = {answer.rank for answer in told}.difference(absent, stuck)
    return [rank for rank in behind if rank not in come] or absent or behind


def _has_come(mine: Call, answer: Answer) -> bool:
    """Whether the rank of ``answer`` is known to have begun the call ``mine``; persistent calls have no numbers."""
    if mine.number is None:
        return answer.call == mine and mine.algorithm != "message"
    return not answer.silent and answer.begun >= mine.number


def waiting_for(ranks: list[int]) -> str:
    """Text for an error message: the ranks that a call waits for."""
    return f"waiting for rank {', '.join(map(str, ranks))}" if ranks else "MPI does not say whom it waits for"


def overdue(
    lateness: str, behind: list[int], told: list[Answer], dead: list[int]
) -> tuple[type[CollectiveError], str, str | None]:
    """Exception class, message and origin, in the form of :func:`verdict`, for a call past its timeout.

    ``lateness`` is a text that says how long it took. ``behind`` are the ranks that the call waits for, ``told`` this
    rank's answer and then those of others, ``dead`` the ranks whose processes have ended.
    """
    mine = told[0].call
    for answer in told[1:]:
        found = verdict(mine, answer) if mine is not None else None
        if found is not None and found[0] is not CollectiveTimeout:
            return found
    late = missing(behind, told)
    if not behind:
        late = sorted({*late, *dead})
    dead = [rank for rank in dead if rank in late]
    ended = any(answer.left for answer in told if answer.rank in late)
    died = f"; rank {', '.join(map(str, dead))} died" if dead else ""
    more = died or _past(mine, [answer for answer in told[1:] if answer.rank in late])
    return PeerFailure if dead or ended else CollectiveTimeout, f"{lateness}; {waiting_for(late)}{more}", None


def _past(mine: Call | None, late: list[Answer]) -> str:
    """Text for an error message: which ranks that the call ``mine`` waits for have begun later calls."""
    number = None if mine is None else mine.number
    ranks = [answer.rank for answer in late if number is not None and answer.begun > number and not answer.silent]
    if not ranks:
        return ""
    who = f"rank {', '.join(map(str, ranks))} {'has' if len(ranks) == 1 else 'have'}"
    return f"; {who} begun later calls, and may have sent no data, or less than expected, for this one"


def lines(answers: list[Answer]) -> str:
    """The end of an error message: a line for each answer, at most 16; ranks that have not begun the call go first."""
    mine = answers[0].call
    if len(answers) > MOST and mine is not None:
        answers = [answers[0], *sorted(answers[1:], key=lambda answer: not answer.left and _has_come(mine, answer))]
    told = [f"\n  {answer}" for answer in answers[:MOST]]
    return "".join(told) + (f"\n  ({len(answers) - MOST} more ranks)" if len(answers) > MOST else "")
