"""``Peer``: sums of gradients for and from one other rank, which wait for nobody and are not lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..models.nn import Array
from ..server.messages import HEAD, Bytes, pack, unpack
from ..server.transfers import Inbox, Transfer, send

GRADIENTS, TAKEN = 1, 2  # tags
MORE, LAST = 0, 1  # kinds of messages


class Peer:
    """Exchanges gradients, arrays like `arrays`, with rank `rank`.

    One message is under way at most. As long as the peer has not taken it, further gradients are added up, and go
    together in the next one. So two messages are the longest queue, however slow the peer is.
    """

    def __init__(self, comm: Any, rank: int, arrays: Sequence[Array]) -> None:
        self._comm, self._rank = comm, rank
        size = HEAD + sum(array.nbytes for array in arrays)
        self._inbox, self._taken = Inbox(comm, rank, GRADIENTS, size), Inbox(comm, rank, TAKEN, HEAD)
        self._waiting = [np.zeros_like(array) for array in arrays]
        self._some = self._last = False  # whether gradients wait, and whether their message is to be the last one
        self._message: tuple[Transfer, Bytes] | None = None  # under way, until the peer has taken it
        self._sent: list[tuple[Transfer, Bytes]] = []
        self._over = False  # whether the peer's last message has come

    def give(self, gradients: Sequence[Array]) -> None:
        """Send gradients, now or with later ones."""
        for waiting, gradient in zip(self._waiting, gradients, strict=True):
            waiting += gradient
        self._some = True
        self.advance()

    def advance(self) -> None:
        """Send what waits, if the peer has taken the message before."""
        if self._message is not None and self._taken.take() is not None:
            self._sent.append(self._message)
            self._message = None
        self._sent = [entry for entry in self._sent if not entry[0].done()]
        if self._message is None and (self._some or self._last):
            arrays = self._waiting if self._some else []
            message = pack(LAST if self._last else MORE, self._comm.rank, 0, 0, 0, 0, *arrays)
            self._message = send(self._comm, message, self._rank, GRADIENTS), message
            self._some = self._last = False
            for waiting in self._waiting:
                waiting.fill(0)

    def arrived(self) -> Iterator[list[Array]]:
        """The gradients that have come, each list valid until the next one."""
        while not self._over and (packed := self._inbox.take()) is not None:
            message = unpack(packed)
            self._over = message.kind == LAST
            note = pack(MORE, self._comm.rank, 0, 0, 0, 0)
            self._sent.append((send(self._comm, note, self._rank, TAKEN), note))
            if len(message.payload):
                yield list(self._cut(message.payload))

    def _cut(self, payload: Bytes) -> Iterator[Array]:
        start = 0
        for like in self._waiting:
            yield payload[start : start + like.nbytes].view(like.dtype)
            start += like.nbytes

    def end(self) -> None:
        """The next message is the last one of this round."""
        self._last = True

    def ended(self) -> bool:
        """Whether nothing is under way any more, after both have said that this was all. The next round may begin."""
        self.advance()
        over = self._over and self._message is None and not (self._last or self._sent)
        if over:
            self._over = False
        return over

    def close(self) -> None:
        """Expect nothing any more, as all has gone or the other rank has died."""
        self._inbox.close()
        self._taken.close()
        for transfer, _ in self._sent if self._message is None else [self._message, *self._sent]:
            transfer.done()
