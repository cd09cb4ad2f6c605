"""Questions between ranks on different machines, as MPI messages on the library's communicator."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from mpi4py import MPI

from . import deaths
from .diagnosis import Answer
from .peer_queries import pack, unpack
from .ports import Port, Probes, note_open, seen_open

__all__ = ["MPIQueries"]


REFUSAL = 0.05  # seconds to wait for a refusal, which a machine sends for a closed port
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
    or crash after a message to a dead process, messages go only to ranks whose ``ports`` do not refuse a datagram.
    """

    QUESTION, ANSWER = b"?", b"!"

    def __init__(self, comm: MPI.Intracomm, tag: int, context: Any, ports: dict[int, Port]):
        self._comm = comm
        self._tag = tag
        self._context = weakref.ref(context)
        self._lock = threading.RLock()  # a signal handler may come here again
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._asked: set[int] = set()  # ranks that have not answered yet; they are not asked again
        self._probes = Probes(ports)
        self._ports = ports
        self._due: dict[int, float] = {}  # by rank: the time after which its port counts as open
        self._question = self.QUESTION + b"null"
        self.answers: dict[int, Answer] = {}

    @contextlib.contextmanager
    def _alone(self, patience: float) -> Iterator[bool]:
        """Take the lock for sends and receives, waiting up to ``patience`` seconds; yields whether it was taken."""
        alone = self._lock.acquire(timeout=patience)
        try:
            yield alone
        finally:
            if alone:
                self._lock.release()

    def ask(self, ranks: Iterable[int], number: int | None = None) -> None:
        """Ask ``ranks`` what they do, and what their call with ``number`` was, unless a question is under way."""
        with self._alone(PATIENCE) as alone:
            if alone:
                self._question = self.QUESTION + json.dumps(number).encode()
                ranks = [rank for rank in ranks if rank not in self._due]
                self._probes.probe(rank for rank in ranks if rank in self._ports)
                self._due.update(dict.fromkeys(ranks, time.monotonic() + (REFUSAL if self._ports else 0)))
                self._put_questions()

    def _put_questions(self) -> None:
        self._probes.look()
        for rank, due in list(self._due.items()):
            if rank in self._probes.refused:
                self._due.pop(rank, None)
                self.answers[rank] = Answer(rank, silent="its machine refuses its port: its process has ended")
            elif time.monotonic() >= due:
                self._due.pop(rank, None)
                self._probes.leave(rank)
                if rank not in self._asked:
                    self._asked.add(rank)
                    self._send(rank, self._question)

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
            for at in range(0, len(ranks) if alone else 0, AT_ONCE):
                for rank in self._open(ranks[at : at + AT_ONCE]):
                    self._send(rank, news)

    def refused(self, rank: int) -> bool:
        """Whether the port of ``rank`` refused the last datagram."""
        return rank in self._probes.refused

    def closed(self, ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` whose ports refuse a datagram now; any thread may call this, and MPI is not used."""
        probes = Probes(self._ports)
        asked = [rank for rank in ranks if rank in self._ports][:AT_ONCE]
        probes.probe(asked)
        if probes.waiting():
            time.sleep(REFUSAL)
        probes.look()
        for rank in asked:
            probes.leave(rank)
        return sorted(probes.refused)

    def any_refused(self) -> bool:
        """Whether the port of any rank refuses a datagram; at most 256 ports are tried."""
        ranks = list(self._ports)[:AT_ONCE]
        return len(self._open(ranks)) < len(ranks)

    def _open(self, ranks: list[int]) -> list[int]:
        """Those of ``ranks`` whose ports do not refuse a datagram, or that have no known port."""
        unsure = [rank for rank in ranks if rank in self._ports and not seen_open(self._ports[rank])]
        refused = self.closed(unsure) if unsure else []
        opened = [rank for rank in ranks if rank not in refused]
        note_open(self._ports[rank] for rank in opened if rank in self._ports)
        return opened

    def serve(self) -> None:
        """Answer questions and take answers that have arrived, unless another thread does so."""
        with self._alone(0) as alone:
            if alone:
                self._serve_all()

    def _serve_all(self) -> None:
        if self._due:
            self._put_questions()
        try:
            self._serve()
        except MPI.Exception:  # a rank died: receives from MPI_ANY_SOURCE fail until that is acknowledged
            if deaths.are_told():
                with contextlib.suppress(MPI.Exception):
                    self._comm.Ack_failed()

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
            elif context is not None:
                self._send(source, self.ANSWER + pack(context.describe(number=json.loads(data[1:]))))
