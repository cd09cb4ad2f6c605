"""``Server``: receives the messages of workers, and replies, until all workers have left."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from collectives import PeerFailure

from .lifeline import Lifeline
from .messages import COPIED, COPY, HEAD, REPLIES, REQUEST, Bytes, Kind, pack, unpack
from .service import Replies, Service
from .transfers import Inbox, Pause, Transfer, send


class Server:
    """Serves shard `own` of `services`, which has the services of this rank by the numbers of their shards.

    With a `backup`, the rank that has the same shard, workers get a reply when both have what it tells of. This rank
    may itself have the shard of another server, rank `primary`: it gets copies of that one's messages, and serves its
    workers if it dies. `capacity` is the length of the longest message.
    """

    def __init__(
        self, comm: Any, services: Mapping[int, Service], own: int, workers: Iterable[int], capacity: int,
        lifeline: Lifeline, backup: int | None = None, primary: int | None = None,
    ) -> None:  # fmt: skip
        self._comm, self._services, self._lifeline = comm, services, lifeline
        self._leads = {own}  # shards of which this rank tells its backup, or is the only one left
        self._own = own
        self._workers = {worker: Inbox(comm, worker, REQUEST, capacity) for worker in workers}
        self._primary = primary
        self._copies = None if primary is None else Inbox(comm, primary, COPY, capacity)
        self._copied = None if backup is None else Inbox(comm, backup, COPIED, HEAD)
        self._held: deque[Replies] = deque()  # replies that wait for the backup, in the order of its copies
        self._outgoing: list[Transfer] = []
        self._buried: set[int] = set()

    def serve(self, over: Callable[[], bool]) -> None:
        """Serve until all workers have left or died, and ``over()`` says that no rank needs this one any more.

        A worker whose server dies while it leaves begins to need this one, if this is the backup. PeerFailure if all
        workers have died, or if a rank has ended and the job cannot go on without it.
        """
        pause = Pause()
        while not (self._ended() and over()):
            if self._pass():
                pause.reset()
            else:
                pause.rest()
                self._lifeline.look()
                self._bury()
        for inbox in [*self._workers.values(), self._copies, self._copied]:
            if inbox is not None:
                inbox.close()

    def _ended(self) -> bool:
        left = any(service.workers for service in self._services.values())
        return not (left or self._held or self._outgoing)

    def _pass(self) -> bool:
        """Handle at most one message of each rank; returns whether there was any."""
        found = False
        for inbox in self._workers.values():
            if (packed := inbox.take()) is not None:
                self._handle(packed)
                found = True
        if self._copies is not None and (packed := self._copies.take()) is not None:
            self._services[unpack(packed).shard].handle(unpack(packed))
            self._send(packed[:HEAD].copy(), self._copies.peer, COPIED)
            found = True
        if self._copied is not None and self._copied.take() is not None:
            self._reply(self._held.popleft())
            found = True
        self._outgoing = [message for message in self._outgoing if not (message.done() or message.failed)]
        return found

    def _handle(self, packed: Bytes) -> None:
        """Handle a message of a worker; the backup gets it, too. One for the primary tells of its death."""
        message = unpack(packed)
        if message.shard not in self._leads:
            self._succeed()
        replies = self._services[message.shard].handle(message)
        if self._copied is None or message.shard != self._own:
            self._reply(replies)
            return
        self._send(packed[: HEAD + len(message.payload)].copy(), self._copied.peer, COPY)
        self._held.append(replies)

    def _reply(self, replies: Replies) -> None:
        for reply in replies:
            message = unpack(reply)
            self._send(reply, message.worker, REPLIES + message.shard)

    def _send(self, message: Bytes, peer: int, tag: int) -> None:
        self._outgoing.append(send(self._comm, message, peer, tag))

    def _bury(self) -> None:
        """Go on without ranks that have died."""
        for rank in sorted(self._lifeline.dead - self._buried):
            self._buried.add(rank)
            if self._copied is not None and rank == self._copied.peer:
                self._copied.close()
                self._copied = None
                while self._held:
                    self._reply(self._held.popleft())
            if rank == self._primary:
                self._succeed()
            if rank in self._workers:
                self._workers.pop(rank).close()
                self._drop(rank, self._leads)
                if not self._workers:
                    raise PeerFailure(f"all workers have died, rank {rank} as the last one")

    def _succeed(self) -> None:
        """Serve the shard of the primary, which has died.

        Copies that are still to come are left: no worker has a reply to them, so that they all come again.
        """
        if self._copies is not None:
            self._copies.close()
            self._copies = None
            self._lead(set(self._services) - self._leads)

    def _lead(self, shards: set[int]) -> None:
        """Serve the workers of the rank that has died; those that have died, too, are known here."""
        self._leads |= shards
        for rank in self._buried:
            self._drop(rank, shards)

    def _drop(self, worker: int, shards: set[int]) -> None:
        """Tell shards that a worker has died; a backup learns it in its place among the messages."""
        for shard in shards:
            self._handle(pack(Kind.DROP, worker, shard, 0, 0, 0))
