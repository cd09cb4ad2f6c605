"""Questions between ranks about what they are doing, without any collective.

Neighbours, which are ranks of one machine, are asked through a datagram socket. A thread of each process answers there,
even while the program computes. Ranks elsewhere are asked by MPI messages on the library's communicator, and answer
while they wait in a collective themselves.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..arguments.signature import Call
from ..errors import brief
from ..system import machine
from ..system.threads import start_without_signals
from . import exit_notes
from .diagnosis import Answer
from .exit_notes import Reader
from .own_socket import OwnSocket

__all__ = [
    "Address", "PeerQuery", "address", "alive", "can_ask", "contexts", "left", "pack", "register", "spread", "unpack",
]  # fmt: skip

LONGEST = 8192  # most bytes of a message
MOST_AT_ONCE = 256  # most messages received in one call of PeerQuery.collect
PATIENCE = 3  # factor by which a wait is longer for ranks that have not answered at all
REST = 0.001  # seconds of sleep after a message that comes from no neighbour
_CREDENTIALS = struct.calcsize("3i")
_log = logging.getLogger("collectives")
_seen: set[Address] = set()  # of processes on this machine
_contexts: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Address(NamedTuple):
    """Where a process answers: its namespaces, identity and socket. Neighbours have the same ``home``."""

    home: tuple[str, int, int]  # boot id, inodes of the PID and network namespaces
    pid: int
    start: str  # start time of the process, as in /proc/PID/stat
    socket: bytes  # abstract address of its Unix socket
    note: int  # file descriptor of its note, see :mod:`collectives.diagnostics.exit_notes`


def address() -> Address | None:
    """This process's address; the first call starts a thread that answers there. None if the system denies it."""
    try:
        desk = _desk.get()
        home = machine.boot_id(), os.stat("/proc/self/ns/pid").st_ino, os.stat("/proc/self/ns/net").st_ino
        return Address(home, os.getpid(), machine.process(os.getpid())[1], desk.getsockname(), exit_notes.note())
    except OSError:
        return None


def can_ask(mine: Address | None, theirs: Address | None) -> bool:
    """Whether the processes at two addresses can ask each other through sockets, and see each other in /proc.

    A process must have been seen in /proc once: virtual machines that were cloned while they ran have one boot id.
    """
    if mine is None or theirs is None or mine.home != theirs.home:
        return False
    if theirs not in _seen and alive(theirs):
        _seen.add(theirs)
    return theirs in _seen


def register(identity: str, context: Any) -> None:
    """Answer questions about the communicator ``identity``, its name on all its ranks, by ``context.describe()``."""
    _contexts[identity] = context


def contexts() -> list[Any]:
    """The contexts of all communicators of this process that are registered."""
    refs = _contexts.valuerefs()  # a copy, since other threads may make communicators meanwhile
    return [context for ref in refs if (context := ref()) is not None]


def alive(peer: Address) -> bool:
    """Whether a neighbour's process runs, or its state cannot be read; a zombie does not run."""
    try:
        state, start = machine.process(peer.pid)
    except OSError:
        return True
    return state not in "XZ" and start == peer.start


def _open() -> socket.socket:
    """A Unix datagram socket without a file, which receives the credentials of a message's sender."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    made.bind("")
    return made


def _receive(sock: socket.socket) -> tuple[Any, int, Any]:
    """The next message: its JSON value, the sender's PID and address; (None, 0, None) if another user sent it."""
    data, extra, _, sender = sock.recvmsg(LONGEST, socket.CMSG_SPACE(_CREDENTIALS))
    for level, kind, content in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid, user, _ = struct.unpack("3i", content[:_CREDENTIALS])
            if user in (os.geteuid(), 0):
                with contextlib.suppress(ValueError, RecursionError):
                    return json.loads(data), pid, sender
    return None, 0, None


def _serve(desk: socket.socket) -> None:
    while desk.fileno() >= 0:
        try:
            question, pid, sender = _receive(desk)
            if not _heard(desk, question, pid, sender):
                time.sleep(REST)
        except OSError:  # the rank that asked has ended
            pass
        except Exception as e:  # ranks ask later, too
            _log.warning("a question of another rank is not answered: %s", brief(e))


def _heard(desk: socket.socket, question: Any, pid: int, sender: Any) -> bool:
    """Answer a neighbour's question, or record its failure; returns whether the message was one of these."""
    name = question.get("communicator") if isinstance(question, dict) else None
    context = _contexts.get(name) if isinstance(name, str) else None
    if context is None or all(near.pid != pid for near in list(context.neighbours.values())):
        return False
    if "failed" in question:
        answer = _of_neighbour(context, unpack(question["failed"]), pid)
        if answer is None or answer.failure is None:
            return False
        context.hear(answer)
    else:
        number = question.get("call")
        answer = context.describe(number=number if type(number) is int else None)
        desk.sendto(pack(answer), socket.MSG_DONTWAIT, sender)
    return True


def _of_neighbour(context: Any, answer: Answer | None, pid: int) -> Answer | None:
    """``answer`` if it was sent by ``pid``, the process of the rank that it describes; else None."""
    near = context.neighbours.get(answer.rank) if answer is not None else None
    return answer if near is not None and near.pid == pid else None


def _staffed() -> socket.socket:
    """The socket at which this process answers, with a thread that does; a forked child answers no questions."""
    made = _open()
    try:
        start_without_signals(threading.Thread(target=_serve, args=(made,), name="collectives-answers", daemon=True))
    except RuntimeError as e:
        made.close()
        raise OSError(errno.EAGAIN, str(e)) from e
    return made


_desk = OwnSocket(_staffed)


def spread(context: Any, failed: Answer) -> None:
    """Tell all other ranks, unasked, that this one has failed, so that those waiting for it learn it at once."""
    news = _within_limit(failed, lambda answer: {"communicator": context.identity, "failed": answer})
    with contextlib.suppress(OSError), _open() as sock:  # if there is no free descriptor, they have to ask
        for near in context.neighbours.values():
            try:
                sock.sendto(news, socket.MSG_DONTWAIT, near.socket)
            except OSError:  # that rank has ended, or will have to ask
                continue
    if context.mpi_queries is not None:
        context.mpi_queries.tell(rank for rank in context.others() if rank not in context.neighbours)


def _within_limit(answer: Answer, message: Callable[[Answer], Any]) -> bytes:
    """The JSON of ``message(answer)``, with texts cut if it would be longer than 8192 bytes."""
    for most in (LONGEST, LONGEST // 16, LONGEST // 128):  # a character takes six bytes at worst
        text = json.dumps(message(_cut(answer, most))).encode()
        if len(text) <= LONGEST:
            break
    return text


def _cut(fields: Any, most: int) -> Any:
    """``fields`` with texts cut to ``most`` characters by leaving out their middle."""
    if isinstance(fields, str) and len(fields) > most:
        return f"{fields[: most // 2 - 2]}...{fields[-most // 2 + 1 :]}"
    return [_cut(field, most) for field in fields] if isinstance(fields, tuple) else fields


def pack(answer: Answer) -> bytes:
    """The bytes of a message with ``answer``."""
    return _within_limit(answer, lambda cut: cut)


def unpack(fields: Any) -> Answer | None:
    """The answer that the ``fields`` of a message make up; None if they are not valid."""
    if not _are(fields, Answer.__annotations__):
        return None
    rank, call, begun, place, failure, silent, left, gave_up, then = fields
    if not all(each is None or _are(each, Call.__annotations__) for each in (call, then)):
        return None
    if failure is not None and not (isinstance(failure, list) and [type(text) for text in failure] == [str, str]):
        return None
    known, earlier = (Call(*each) if each else None for each in (call, then))
    return Answer(rank, known, begun, place, tuple(failure) if failure else None, silent, left, gave_up, earlier)


def _are(fields: Any, types: dict[str, str]) -> bool:
    """Whether ``fields`` have the annotated ``types``; only int, str and ``int | None`` are checked."""
    if not isinstance(fields, list) or len(fields) != len(types):
        return False
    plain = {"int": (int,), "str": (str,), "int | None": (int, type(None))}
    pairs = zip(fields, types.values(), strict=True)
    return all(type(field) in plain.get(kind, (type(field),)) for field, kind in pairs)


def left(context: Any, rank: int) -> Answer | None:
    """The note of neighbour ``rank`` as an answer, if its program has ended; else None."""
    near = context.neighbours.get(rank)
    if near is None:
        return None
    reader = Reader(near.pid, near.note)
    note = reader.read()
    reader.close()
    return None if note is None else Answer(rank, None, note.begun.get(context.identity, 0), left=note.how)


class PeerQuery:
    """Questions of this rank to others, and the answers so far."""

    def __init__(self, context: Any, number: int | None = None, mpi_queries: bool = True):
        """``number``: also ask what a rank's call with this number was, if the rank has begun it.

        ``mpi_queries``: ask ranks of other machines, too, by MPI messages; False where MPI may not return.
        """
        self._context = context
        self._number = number
        self._mpi_queries = context.mpi_queries if mpi_queries else None
        self._socket: socket.socket | None = None  # while the process has no free descriptor
        self._question = json.dumps({"communicator": context.identity, "call": number}).encode()
        self.answers: dict[int, Answer] = dict(context.heard)  # ranks that have failed may not answer again

    def close(self) -> None:
        """No more questions."""
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> PeerQuery:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def ask(self, ranks: Iterable[int]) -> None:
        """Send the question to ``ranks``; a rank whose process or program has ended gets its answer entered here."""
        far = []
        if self._socket is None:
            with contextlib.suppress(OSError):
                self._socket = _open()
        for rank in ranks:
            near = self._context.neighbours.get(rank)
            if self._context.has_ended(rank):
                self.answers[rank] = Answer(rank, silent=self._context.end_of(rank))
                continue
            if near is None:
                far.append(rank)
                continue
            gone = left(self._context, rank)
            if gone is not None:
                self.answers[rank] = gone
                continue
            with contextlib.suppress(OSError):  # its queue is full: it will be asked again
                if self._socket is not None:
                    self._socket.sendto(self._question, socket.MSG_DONTWAIT, near.socket)
        if far and self._mpi_queries is not None:
            self._mpi_queries.ask(far, self._number)

    def collect(self, seconds: float = 0.0) -> dict[int, Answer]:
        """Answers so far, by rank, after waiting up to ``seconds`` for a message, or 1 ms if MPI is used, too."""
        mpi_queries = self._mpi_queries
        if mpi_queries is not None:
            mpi_queries.serve()
            self.answers.update(mpi_queries.answers)
            mpi_queries.answers.clear()
            seconds = min(seconds, 0.001)
        if self._socket is None:
            time.sleep(seconds)
            return self.answers
        self._socket.settimeout(seconds)
        with contextlib.suppress(OSError):  # no message is left
            for _ in range(MOST_AT_ONCE):
                fields, pid, _ = _receive(self._socket)
                answer = _of_neighbour(self._context, unpack(fields), pid)
                if answer is not None:
                    self.answers[answer.rank] = answer
                self._socket.settimeout(0.0)
        return self.answers

    def settle(self, ranks: Iterable[int], again: bool, seconds: float = 0.3) -> list[Answer]:
        """The answers of ``ranks`` after asking them for up to ``seconds``, three times as long for silent ranks.

        Silent ranks have longer because the answering thread may be late on busy cores. ``again``: ask ranks that are
        in no call more than once, since they may be about to wait.
        """
        asked, begin = list(ranks), time.monotonic()
        while waited_for := [rank for rank in asked if not self._settled(rank, again)]:
            quiet = any(rank not in self.answers for rank in waited_for)
            end = begin + (seconds * PATIENCE if quiet else seconds)
            if time.monotonic() >= end:
                break
            self.ask(waited_for)
            pause = min(time.monotonic() + seconds / 4, end)
            while time.monotonic() < pause and not all(self._settled(rank, again) for rank in asked):
                self.collect(max(0.0, pause - time.monotonic()))
        silent = "does not answer: it is in no collective of this library, keeps the interpreter busy, or gets no core"
        return [self.answers.get(rank) or Answer(rank, silent=silent) for rank in asked]

    def _settled(self, rank: int, again: bool) -> bool:
        answer = self.answers.get(rank)
        return answer is not None and (not again or bool(answer.call or answer.failure or answer.silent))
