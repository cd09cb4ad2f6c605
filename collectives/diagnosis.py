"""What a rank does, in words for the others, and what the words of several ranks mean together.

Nothing here costs anything before a call has been waited for in vain: file and line are those of the frames then.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple

from . import _core
from .errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, PeerFailure

__all__ = [
    "SWAPPED", "Answer", "Call", "differ", "foreign", "libraries", "lines", "missing", "outer_position", "overdue",
    "position", "signature", "type_name", "verdict", "waiting_for",
]  # fmt: skip

MOST = 16  # ranks that a message describes
SWAPPED = 64  # added to the number of a type whose bytes are in the other order

_PACKAGE = os.path.dirname(__file__) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
libraries: list[str] = []  # folders of libraries that make calls for the program
_KINDS = {kind.__name__: kind for kind in (CollectiveMismatch, CollectiveTimeout, PeerFailure)}
#: Collectives whose ranks know but some of the lengths: of unequal blocks.
_LOCAL = ("gatherv", "scatterv", "alltoallv")


class Call(NamedTuple):
    """One rank's call.

    ``number`` counts the calls of the communicator; None for those of persistent requests, which ranks may start in
    any order, and for messages, whose ``algorithm`` is "message". What moves no data, as creating a communicator, has
    no ``algorithm``. Where nothing is reduced, ``op`` is empty, elements are bytes, and ``dtype`` says what they are
    of, if that is known. ``history`` is a number of this and earlier calls between processes, 0 where it is not known.
    """

    number: int | None
    collective: str
    algorithm: str
    elements: int
    dtype: str
    op: str
    root: int | None
    history: int = 0

    def __str__(self) -> str:
        number = "a persistent call, " if self.number is None else f"call {self.number}, "
        if not self.algorithm:
            return f"{number}{self.collective}" if self.number else self.collective
        if not self.collective:
            return f"{number}of the node-local engine"
        words = [f"{'' if self.algorithm == 'message' else number}{self.collective}"]
        if self.collective != "barrier":
            moved = f"bytes of {self.dtype}" if self.dtype else "bytes"
            words[0] += f" of {self.elements} {(self.dtype if self.op else moved) or 'bytes'}"
        words += [self.op] if self.op else []
        words += [f"root {self.root}"] if self.root is not None else []
        return f"{', '.join(words)} ({self.algorithm})"


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


def signature(collective: str, algorithm: str, elements: int, dtype: int, op: Any, root: int) -> Call:
    """A call from the codes of the compiled core; ``op`` is a code, -1 or None where nothing is reduced, or neither."""
    rooted = collective.removesuffix("v") in ("bcast", "gather", "scatter", "reduce")
    name = _core.OPS[op].upper() if isinstance(op, int) and op >= 0 else "" if op in (None, -1) else "a user-defined op"
    dtype_name = type_name(dtype)
    if collective == "barrier":
        elements, dtype_name, name = 0, "", ""
    return Call(None, collective, algorithm, elements, dtype_name, name, root if rooted else None)


def type_name(number: int) -> str:
    """Name of a basic type by its number; "" for none."""
    if number < 0:
        return ""
    return _core.DTYPES[number] if number < SWAPPED else f"byte-swapped {_core.DTYPES[number - SWAPPED]}"


def differ(one: Call, other: Call) -> bool:
    """Whether two ranks' calls of the same number cannot be the same collective call."""
    if one.number is None or one.number != other.number:
        return False
    if not one.collective or not other.collective:  # nothing else is known
        return one.algorithm != other.algorithm
    if one.collective.removesuffix("_init") in _LOCAL or other.collective.removesuffix("_init") in _LOCAL:
        one, other = one._replace(elements=0), other._replace(elements=0)
    if not (one.op or other.op) and not (one.dtype and other.dtype):  # bytes match elements of any type
        one, other = one._replace(dtype=""), other._replace(dtype="")
    if not one.history or not other.history:
        one, other = one._replace(history=0), other._replace(history=0)
    return one != other


def position(thread: int | None = None) -> str:
    """File and line of the program where a thread (by default the main one) is: outside this package and Python's own.

    Where a thread of a library waits for the program, the place of the main thread; the nearest frame, whatever it is,
    where all belong to libraries.
    """
    main, frames = threading.main_thread().ident or 0, sys._current_frames()
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
