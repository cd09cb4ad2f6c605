"""How ranks on different machines ask each other what they are doing: by messages on the library's communicator."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable
from typing import Any

from mpi4py import MPI

from .diagnosis import Answer
from .inquiry import pack, unpack

__all__ = ["Letters"]


class Letters:
    """Questions and answers as messages on the library's communicator, under a tag of their own."""

    QUESTION, ANSWER = b"?", b"!"

    def __init__(self, comm: MPI.Intracomm, tag: int, context: Any):
        self._comm = comm
        self._tag = tag
        self._context = weakref.ref(context)
        self._sent: list[tuple[MPI.Request, bytes]] = []
        self._asked: set[int] = set()  # and not heard of yet: a rank is not asked twice
        self.answers: dict[int, Answer] = {}

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks that are not asked already."""
        for rank in set(ranks) - self._asked:
            self._asked.add(rank)
            self._send(rank, self.QUESTION)

    def _send(self, rank: int, text: bytes) -> None:
        self._sent = [(request, kept) for request, kept in self._sent if not request.Test()]
        self._sent.append((self._comm.Isend([text, MPI.BYTE], rank, self._tag), text))

    def tell(self, ranks: Iterable[int]) -> None:
        """Send ranks what they have not asked for."""
        context = self._context()
        if context is not None:
            news = self.ANSWER + pack(context.describe())
            for rank in ranks:
                self._send(rank, news)

    def serve(self) -> None:
        """Answer questions that came, and take answers."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, self._tag, status):
            source, data = status.Get_source(), bytearray(status.Get_count(MPI.BYTE))
            self._comm.Recv([data, MPI.BYTE], source, self._tag)
            context = self._context()
            if data[:1] == self.ANSWER:
                self._asked.discard(source)
                self.answers[source] = answer = unpack(json.loads(data[1:]))
                if context is not None and answer.failure is not None:
                    context.heard[source] = answer
            elif context is not None:
                self._send(source, self.ANSWER + pack(context.describe()))
