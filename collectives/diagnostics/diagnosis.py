"""What a rank does, in words for the others, and what the words of several ranks mean together.

Nothing here costs anything before a call has been waited for in vain: file and line are those of the frames then.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import NamedTuple

from ..arguments.signature import Call, differ, signature
from ..core import _core
from ..errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure

__all__ = [
    "Answer", "foreign", "libraries", "lines", "missing", "outer_position", "overdue", "position", "verdict",
    "waiting_for",
]  # fmt: skip

MOST = 16  # ranks that a message describes

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
libraries: list[str] = []  # folders of libraries that make calls for the program
_KINDS = {kind.__name__: kind for kind in (CollectiveMismatch, CollectiveTimeout, PeerFailure)}


class Answer(NamedTuple):
    """What a rank says of itself, for one communicator.

    ``call`` is the one under way, or the one that failed; ``begun`` the number of calls so far; ``place`` file and line
    of the program. ``failure`` is the error that broke the communicator, by name, and the first line of the one that it
    comes from; the rank's part in the calls from number ``gave_up`` on is given up then. ``left`` says how the program
    ended, if it has.
    """

    rank: int
    call: Call | None = None
    begun: int = 0
    place: str = ""
    failure: tuple[str, str] | None = None
    silent: str = ""  # why there is no answer
    left: str = ""
    gave_up: int = 0
    then: Call | None = None  # of the number asked for, which has begun before

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
    """File and line of the program where a thread (by default the main one) is: outside this package and Python's own.

    Where a thread of a library waits for the program, the place of the main thread; the nearest frame, whatever it is,
    where all belong to libraries.
    """
    frames = sys._current_frames()
    try:
        return _place_among(frames, thread)
    finally:
        frames.clear()  # this frame is among them: a cycle, which would keep the program's arrays


def _place_among(frames: dict[int, FrameType], thread: int | None) -> str:
    main = threading.main_thread().ident or 0
    frame = frames.get(main if thread is None else thread)
    found = _of_the_program(frame) or _of_the_program(frames.get(main)) or frame
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else "the end of the program"


def outer_position() -> str | None:
    """File and line of the program's call of this package that this thread is within, in a handler, say; None: in none.

    The innermost frames are this package's, then come the handler's, then this package's.
    """
    frame = _of_the_program(sys._getframe())
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    found = _of_the_program(frame)
    return f"{found.f_code.co_filename}:{found.f_lineno}" if found else None


def _of_the_program(frame: FrameType | None) -> FrameType | None:
    while frame is not None and foreign(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def foreign(file: str) -> bool:
    """Whether a file is of this package, of Python's own library, or of one that makes calls for the program."""
    own = file.startswith((_PACKAGE, "<frozen ", *libraries))
    return own or (file.startswith(_STANDARD) and "-packages" + os.sep not in file)


def verdict(mine: Call, answer: Answer) -> tuple[type[CollectiveError], str, str | None] | None:
    """Why a call will never end, told from what another rank says, or None while it may.

    The error, its words, and the words of the error that it comes from, if that was another rank's.
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
    """The ranks that keep a call from ending: of those it waits for, the ones that have not come to it.

    ``told`` is what this rank says, first, and what others do. A rank that has come may itself wait for others: where
    all that are waited for have come, any other is named that has not, and they themselves where there is none.
    """
    mine = told[0].call
    absent = [answer.rank for answer in told[1:] if mine is not None and not _has_come(mine, answer)]
    stuck = [answer.rank for answer in told[1:] if answer.left]  # begun before its program ended, and not ended
    come = {answer.rank for answer in told}.difference(absent, stuck)
    return [rank for rank in behind if rank not in come] or absent or behind


def _has_come(mine: Call, answer: Answer) -> bool:
    """Whether a rank is known to have begun this rank's call; those of persistent requests have no numbers."""
    if mine.number is None:
        return answer.call == mine and mine.algorithm != "message"
    return not answer.silent and answer.begun >= mine.number


def waiting_for(ranks: list[int]) -> str:
    """Words for the ranks that a call waits for."""
    return f"waiting for rank {', '.join(map(str, ranks))}" if ranks else "MPI does not say whom it waits for"


def overdue(
    lateness: str, behind: list[int], told: list[Answer], dead: list[int]
) -> tuple[type[CollectiveError], str, str | None]:
    """The error of a call past its timeout, its words, and those of the error that it comes from, as of ``verdict``.

    ``lateness``: words for how long it took. ``told``: what this rank says, first, and what others do. ``dead``: those
    whose processes have ended.
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
    return PeerFailure if dead or ended else CollectiveTimeout, f"{lateness}; {waiting_for(late)}{died}", None


def lines(answers: list[Answer]) -> str:
    """What ranks say, a line each, as the end of a message: the first, then, where not all fit, who has not come."""
    mine = answers[0].call
    if len(answers) > MOST and mine is not None:
        answers = [answers[0], *sorted(answers[1:], key=lambda answer: not answer.left and _has_come(mine, answer))]
    told = [f"\n  {answer}" for answer in answers[:MOST]]
    return "".join(told) + (f"\n  ({len(answers) - MOST} more ranks)" if len(answers) > MOST else "")
