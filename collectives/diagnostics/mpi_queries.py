"""Questions between ranks on different machines, as MPI messages on the library's communicator."""

from __future__ import annotations

import contextlib
import json
import threading
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from mpi4py import MPI

from ..core import _core
from . import deaths
from .diagnosis import Answer
from .peer_queries import pack, unpack
from .ports import Port, note_open, refusing, seen_open

__all__ = ["MPIQueries"]


ANSWERING = 0.05  # seconds to wait for machines that neither accept nor refuse a connection
LAST_LOOKS = 10  # each has MPI look at its network, after which messages are found that had arrived before
AT_ONCE = 256  # most ranks whose ports are tried together
PATIENCE = 1.0  # seconds to wait for another thread that sends or receives; MPI may keep that thread for ever


def _under_way(request: MPI.Request) -> bool:
    try:
        return not request.Test()
    except MPI.Exception:
        return False


class MPIQueries:
    """Questions and answers as messages on the library's communicator, with a tag of their own.

    A message that does not arrive is no error here: the rank that asks has other ways to notice. Where MPI would hang
    or crash after a message to a dead process, messages go only to ranks whose ``ports`` do not refuse a connection.
    """

    QUESTION, ANSWER = b"?", b"!"

    def __init__(self, comm: MPI.Intracomm, tag: int, context: Any, ports: dict[int, Port]):
        self._comm = comm
        self._tag = tag
        self._context = weakref.ref(context)
        self._lock = threading.RLock()  # a signal handler may come here again
        self._closed = False
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._asked: set[int] = set()  # ranks that have not answered yet; they are not asked again
        self._ports = ports
        self._refused: set[int] = set()  # ranks whose ports refused the last connection
        self._numbers: dict[int, list[int | None]] = {}  # by rank: the calls that it has asked for, to be answered
        self.answers: dict[int, Answer] = {}

    @contextlib.contextmanager
    def _alone(self, patience: float) -> Iterator[bool]:
        """Take the lock for sends and receives, waiting up to ``patience`` seconds; yields whether messages may go.

        They may not if the lock was not taken, if the communicator is being freed or was freed, or after MPI_Finalize:
        what waits for a communicator that is being made, and other threads, may still refer to this object.
        """
        alone = self._lock.acquire(timeout=patience)
        try:
            yield alone and not self._closed and not _core.ended() and self._comm != MPI.COMM_NULL
        finally:
            if alone:
                self._lock.release()

    def ask(self, ranks: Iterable[int], number: int | None = None) -> None:
        """Ask ``ranks`` what they do, and what their call with ``number`` was, unless a question is under way."""
        question = self.QUESTION + json.dumps(number).encode()
        with self._alone(PATIENCE) as alone:
            if alone:
                ranks = list(ranks)
                opened = self._open(ranks)
                for rank in opened:
                    if rank not in self._asked:
                        self._asked.add(rank)
                        self._send(rank, question)
                for rank in set(ranks).difference(opened):
                    self.answers[rank] = Answer(rank, silent="its machine refuses its port: its process has ended")

    def _answer(self, rank: int, number: int | None) -> None:
        context = self._context()
        if context is not None:
            self._send(rank, self.ANSWER + pack(context.describe(number=number)))

    def _send(self, rank: int, text: bytes) -> None:
        for message in list(self._sent):
            if not _under_way(message[0]) and message in self._sent:
                self._sent.remove(message)
        with contextlib.suppress(MPI.Exception):  # the rank has died
            self._sent.append((self._comm.Isend([text, MPI.BYTE], rank, self._tag), text))

    def tell(self, ranks: Iterable[int]) -> None:
        """Send ``ranks``, unasked, this rank's state: how it has failed, or how its program has ended."""
        context = self._context()
        if context is None:
            return
        news = self.ANSWER + pack(context.describe())
        ranks = [rank for rank in ranks if not context.has_ended(rank)]
        with self._alone(PATIENCE) as alone:
            for at in range(0, len(ranks) if alone else 0, AT_ONCE):  # ports are tried just before the messages go
                for rank in self._open(ranks[at : at + AT_ONCE]):
                    self._send(rank, news)

    def refused(self, rank: int) -> bool:
        """Whether the port of ``rank`` refused the last connection."""
        return rank in self._refused

    def closed(self, ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` whose ports refuse a connection now; any thread may call this, and MPI is not used."""
        known, found = [rank for rank in ranks if rank in self._ports], set()
        for at in range(0, len(known), AT_ONCE):
            found |= refusing({rank: self._ports[rank] for rank in known[at : at + AT_ONCE]}, ANSWERING)
        return sorted(found)

    def any_died(self) -> bool:
        """Whether the port of any rank's process refuses a connection; at most 256 ports are tried."""
        some = list(self._ports.items())[:AT_ONCE]
        unsure = {rank: there for rank, there in some if not seen_open(there)}
        return bool(refusing(unsure, ANSWERING, of_process=True))

    def _open(self, ranks: list[int]) -> list[int]:
        """Those of ``ranks`` whose ports do not refuse a connection, or that have no known port."""
        found = set(self.closed(ranks))
        self._refused = self._refused.difference(ranks) | found
        opened = [rank for rank in ranks if rank not in found]
        note_open(self._ports[rank] for rank in opened if rank in self._ports)
        return opened

    def serve(self) -> None:
        """Answer questions and take answers that have arrived, unless another thread does so."""
        with self._alone(0) as alone:
            if alone:
                self._serve_all()

    def drain(self) -> None:
        """Receive what has arrived and answer nothing, at the program's end.

        Some MPIs warn at the end of messages that nobody received.
        """
        with self._alone(PATIENCE) as alone, contextlib.suppress(MPI.Exception):
            for _ in range(LAST_LOOKS if alone else 0):
                self._serve()
            self._numbers.clear()

    def close(self) -> None:
        """Receive what has arrived; from then on nothing is sent or received, since the communicator will be freed."""
        with self._alone(PATIENCE):
            self.drain()
            self._closed = True

    def _serve_all(self) -> None:
        try:
            self._serve()
        except MPI.Exception:  # a rank died: receives from MPI_ANY_SOURCE fail until that is acknowledged
            if deaths.are_told():
                with contextlib.suppress(MPI.Exception):
                    self._comm.Ack_failed()
        numbers, self._numbers = self._numbers, {}
        for rank in self._open(list(numbers)):
            for number in numbers[rank]:
                self._answer(rank, number)

    def _serve(self) -> None:
        status = MPI.Status()
        while message := self._comm.Improbe(MPI.ANY_SOURCE, self._tag, status):
            source, data = status.Get_source(), bytearray(status.Get_count(MPI.BYTE))
            message.Recv([data, MPI.BYTE])
            context = self._context()
            if data[:1] == self.ANSWER:
                self._asked.discard(source)
                answer = unpack(json.loads(data[1:]))
                if answer is None:
                    continue
                self.answers[source] = answer
                if context is not None and answer.failure is not None:
                    context.hear(answer)
                if context is not None and answer.left:
                    context.left[source] = answer
            else:
                self._numbers.setdefault(source, []).append(json.loads(data[1:]))
