"""How ranks ask each other what they are doing, outside of MPI's collectives and of ours.

Neighbours, which share a machine, are asked through a socket: a thread of each process, asleep otherwise, answers even
while the program computes. Ranks elsewhere are asked by messages on the library's communicator, and answer whenever
they wait in a collective themselves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..arguments.signature import Call
from ..system import machine
from . import exit_notes
from .diagnosis import Answer
from .exit_notes import Reader

__all__ = [
    "Address", "PeerQuery", "address", "alive", "can_ask", "contexts", "left", "pack", "register", "spread", "unpack",
]  # fmt: skip

LONGEST = 8192  # bytes of a message
MOST_AT_ONCE = 256  # messages taken before anything else is looked at
PATIENCE = 3  # times as long for ranks that are silent as for those that answer
REST = 0.001  # seconds after a message that no rank sends
_CREDENTIALS = struct.calcsize("3i")
_contexts: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_lock = threading.Lock()
_desk: socket.socket | None = None


class Address(NamedTuple):
    """Where a process answers: its namespaces, identity and socket. Neighbours have the same ``home``."""

    home: tuple[str, int, int]  # boot, namespaces of processes and of the network
    pid: int
    start: str
    socket: bytes
    note: int  # the file of what it says when its program ends


def address() -> Address | None:
    """This process's address; from the first call on a thread answers there. None where the system does not let it."""
    global _desk
    try:
        with _lock:
            if _desk is None:
                _desk = _open()
                threading.Thread(target=_serve, args=(_desk,), name="collectives-answers", daemon=True).start()
        home = machine.boot_id(), os.stat("/proc/self/ns/pid").st_ino, os.stat("/proc/self/ns/net").st_ino
        return Address(home, os.getpid(), machine.process(os.getpid())[1], _desk.getsockname(), exit_notes.note())
    except OSError:
        return None


def can_ask(mine: Address | None, theirs: Address | None) -> bool:
    """Whether two ranks can ask each other by their sockets, and see each other in /proc."""
    return mine is not None and theirs is not None and mine.home == theirs.home


def register(identity: str, context: Any) -> None:
    """Answer for a communicator, known by that name on all its ranks, by ``context.describe()``."""
    _contexts[identity] = context


def contexts() -> list[Any]:
    """The communicators that are answered for."""
    refs = _contexts.valuerefs()  # a copy at once, while other threads make communicators
    return [context for ref in refs if (context := ref()) is not None]


def alive(peer: Address) -> bool:
    """Whether a neighbour's process runs, for all that is known; one that nobody has waited for (a zombie) does not."""
    try:
        state, start = machine.process(peer.pid)
    except OSError:
        return True
    return state not in "XZ" and start == peer.start


def _open() -> socket.socket:
    """A socket without a name in the file system, so that nothing is left of it; messages tell their sender's user."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    made.bind("")
    return made


def _receive(sock: socket.socket) -> tuple[Any, int, Any]:
    """The next message: what it says, its process and whence it came; None for what no rank of this user's says."""
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
        with contextlib.suppress(OSError):  # who asked is gone
            question, pid, sender = _receive(desk)
            if not _heard(desk, question, pid, sender):
                time.sleep(REST)


def _heard(desk: socket.socket, question: Any, pid: int, sender: Any) -> bool:
    """Whether a message is a neighbour's question, or its word that it failed; a question is answered."""
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
    """An answer that comes from the process of the rank that it speaks for; else None."""
    near = context.neighbours.get(answer.rank) if answer is not None else None
    return answer if near is not None and near.pid == pid else None


def _after_fork() -> None:
    """The child answers nobody; the socket stays the parent's."""
    global _desk, _lock
    _lock = threading.Lock()
    if _desk is not None:
        _desk.close()
        _desk = None


os.register_at_fork(after_in_child=_after_fork)


def spread(context: Any, failed: Answer) -> None:
    """Tell all other ranks, asked or not, that this one failed: those that wait for it need not ask."""
    news = _fast(failed, lambda answer: {"communicator": context.identity, "failed": answer})
    with contextlib.suppress(OSError), _open() as sock:  # without a free descriptor they have to ask
        for near in context.neighbours.values():
            try:
                sock.sendto(news, socket.MSG_DONTWAIT, near.socket)
            except OSError:  # it is gone, or will have to ask
                continue
    if context.mpi_queries is not None:
        context.mpi_queries.tell(rank for rank in context.others() if rank not in context.neighbours)


def _fast(answer: Answer, message: Callable[[Answer], Any]) -> bytes:
    """A message with an answer, whose texts are cut where it would be too long."""
    for most in (LONGEST, LONGEST // 16, LONGEST // 128):  # six bytes a character, at worst
        text = json.dumps(message(_cut(answer, most))).encode()
        if len(text) <= LONGEST:
            break
    return text


def _cut(fields: Any, most: int) -> Any:
    """The same fields with texts of up to so many characters, those from their middle left out."""
    if isinstance(fields, str) and len(fields) > most:
        return f"{fields[: most // 2 - 2]}...{fields[-most // 2 + 1 :]}"
    return [_cut(field, most) for field in fields] if isinstance(fields, tuple) else fields


def pack(answer: Answer) -> bytes:
    """An answer as a message."""
    return _fast(answer, lambda cut: cut)


def unpack(fields: Any) -> Answer | None:
    """The answer that a message's fields are; None where they are none."""
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
    """Whether fields of a message have the types that annotations of plain types say; others are not looked at."""
    if not isinstance(fields, list) or len(fields) != len(types):
        return False
    plain = {"int": (int,), "str": (str,), "int | None": (int, type(None))}
    pairs = zip(fields, types.values(), strict=True)
    return all(type(field) in plain.get(kind, (type(field),)) for field, kind in pairs)


def left(context: Any, rank: int) -> Answer | None:
    """What a neighbour whose program has ended left word of; None where it runs on."""
    near = context.neighbours.get(rank)
    if near is None:
        return None
    reader = Reader(near.pid, near.note)
    note = reader.read()
    reader.close()
    return None if note is None else Answer(rank, None, note.begun.get(context.identity, 0), left=note.how)


class PeerQuery:
    """Questions of one rank, and the answers so far."""

    def __init__(self, context: Any, number: int | None = None, mpi_queries: bool = True):
        """``number``: of a call, of which those ranks tell what theirs was that have begun it.

        ``mpi_queries``: ask by messages, too, those that have no socket here; not where MPI does not come back.
        """
        self._context = context
        self._number = number
        self._mpi_queries = context.mpi_queries if mpi_queries else None
        self._socket = _open()
        self._question = json.dumps({"communicator": context.identity, "call": number}).encode()
        self.answers: dict[int, Answer] = dict(context.heard)  # those that failed may not answer any more

    def close(self) -> None:
        """No more questions."""
        self._socket.close()

    def __enter__(self) -> PeerQuery:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def ask(self, ranks: Iterable[int]) -> None:
        """Send the question to these ranks; those that cannot hear it are described as silent."""
        far = []
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
            try:
                self._socket.sendto(self._question, socket.MSG_DONTWAIT, near.socket)
            except OSError:  # its queue is full: it will be asked again
                continue
        if far and self._mpi_queries is not None:
            self._mpi_queries.ask(far, self._number)

    def collect(self, seconds: float = 0.0) -> dict[int, Answer]:
        """Answers so far, after waiting up to so long for one more; what others send meanwhile takes no longer."""
        mpi_queries = self._mpi_queries
        if mpi_queries is not None:
            mpi_queries.serve()
            self.answers.update(mpi_queries.answers)
            mpi_queries.answers.clear()
            seconds = min(seconds, 0.001)
        self._socket.settimeout(seconds)
        with contextlib.suppress(OSError):  # there is no more
            for _ in range(MOST_AT_ONCE):
                fields, pid, _ = _receive(self._socket)
                answer = _of_neighbour(self._context, unpack(fields), pid)
                if answer is not None:
                    self.answers[answer.rank] = answer
                self._socket.settimeout(0.0)
        return self.answers

    def settle(self, ranks: Iterable[int], again: bool, seconds: float = 0.3) -> list[Answer]:
        """What these ranks say; ``again``: those in no call are asked more than once, for they may be about to wait.

        Those that do not answer have longer: on busy cores the thread that does comes late.
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
        silent = "does not answer: it is in no collective of this library, or keeps the interpreter busy"
        return [self.answers.get(rank) or Answer(rank, silent=silent) for rank in asked]

    def _settled(self, rank: int, again: bool) -> bool:
        answer = self.answers.get(rank)
        return answer is not None and (not again or bool(answer.call or answer.failure or answer.silent))
