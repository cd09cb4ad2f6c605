"""``Mail``: messages between ranks, whose bytes are counted by path; ``Inbox``: what has come from one rank."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import train
from .frames import apart
from .transitions import Array, Form, Transitions

Bytes = NDArray[np.uint8]
HEAD = 24  # bytes of the header: three integers
NAP, LONGEST = 1e-4, 1e-3  # seconds between looks that found nothing: at first, and after several of them


class Kind(enum.IntEnum):
    """What a message is."""

    ADD = 0  # actor to replay: transitions and their priorities; number = environment steps that they stand for
    LAST = 1  # as ADD, the last one of an actor before it rests
    GO = 2  # replay to actor: an ADD was handled; number = 1 if the actor is to rest
    BATCH = 3  # replay to learner: transitions and their weights; number = environment steps that the replay has seen
    ROUND = 4  # replay to learner, in lockstep: number = batches of this round
    REST = 5  # replay to learner: no more batches; learner to replay: no more are wanted; actor to learner: it rests
    ERRORS = 6  # learner to replay: the priorities of the oldest batch that has none
    ASK = 7  # actor to learner: parameters are wanted
    PARAMETERS = 8  # learner to actor
    STEPS = 9  # replay to learner: no batch is due; number = environment steps that the replay has seen


class Message(NamedTuple):
    """A message: its kind, a number, and `rows` values or transitions, as bytes."""

    kind: int
    number: int
    rows: int
    payload: Bytes

    def numbers(self) -> NDArray[np.float32]:
        """The payload of ERRORS and PARAMETERS: ``rows`` numbers."""
        return self.payload[: 4 * self.rows].view(np.float32)

    def transitions(self, form: Form) -> tuple[Transitions, NDArray[np.float32]]:
        """The payload of ADD, LAST and BATCH: transitions, and a number for each; see `pack_transitions`."""
        start = 0

        def next_array(shape: tuple[int, ...], dtype: Any) -> Array:
            nonlocal start
            found: Array = np.empty(shape, dtype)
            found.reshape(-1).view(np.uint8)[:] = self.payload[start : start + found.nbytes]
            start += found.nbytes
            return found

        rows = self.rows
        if form.stacked:
            count = int(next_array((1,), np.int64)[0])
            frames = next_array((count, *form.shape[1:]), form.dtype)
            observations, after = frames[next_array((2, rows, form.shape[0]), np.int32)]
        else:
            observations, after = next_array((2, rows, *form.shape), form.dtype)
        actions, rewards = next_array((rows,), np.int32), next_array((rows,), np.float32)
        discounts, numbers = next_array((rows,), np.float32), next_array((rows,), np.float32)
        return Transitions(observations, actions, rewards, after, discounts), numbers


def pack(kind: int, number: int = 0, count: int = 0, *arrays: Any) -> Bytes:
    """A message as one array of bytes: kind, number, count, and all `arrays`."""
    head = np.array([kind, number, count], np.int64)
    return np.concatenate([np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in (head, *arrays)])


def pack_transitions(kind: int, number: int, transitions: Transitions, numbers: Any, form: Form) -> Bytes:
    """A message with transitions, and one of `numbers` for each. Each different frame of stacks is there once."""
    observations, actions, rewards, after, discounts = transitions
    if form.stacked:
        frames, places = apart(form.frames(transitions))
        seen = [np.array([len(frames)], np.int64), frames, places]
    else:
        seen = [observations, after]
    return pack(kind, number, transitions.rows, *seen, actions, rewards, discounts, numbers)


def longest(form: Form, rows: int) -> int:
    """The most bytes of the payload of such a message of so many rows."""
    extra = 8 + rows * 2 * 4 * form.shape[0] if form.stacked else 0
    return rows * (form.nbytes + 4) + extra


def unpack(packed: Bytes) -> Message:
    """The message that `pack` made, at the beginning of a buffer. Its payload is a view."""
    kind, number, count = packed[:HEAD].view(np.int64).tolist()
    return Message(kind, number, count, packed[HEAD:])


class Inbox:
    """Messages from rank `peer` with `tag`, of at most `longest` bytes; ``taken`` is their number so far.

    None comes any more once MPI has noticed the death of that rank.
    """

    def __init__(self, comm: Any, peer: int, tag: int, longest: int) -> None:
        self.peer, self.taken, self._packed = peer, 0, train.Inbox(comm, peer, tag, longest)

    def take(self) -> Message | None:
        """The next message if it is there. It is valid until the next call."""
        packed = self._packed.take()
        if packed is None:
            return None
        self.taken += 1
        return unpack(packed)

    def close(self) -> None:
        """Expect no message any more."""
        self._packed.close()


def _alive(call: Callable[[], Any]) -> Any:
    """What `call` returns, or None if the other rank is dead, in a job that goes on without it."""
    try:
        return call()
    except Exception as error:
        if not train.is_death(error):
            raise
        return None


class Mail:
    """A rank's messages on `comm`. ``watch()`` is called while it waits; it raises if it waits for what cannot come.

    ``dead`` has the ranks that are known to have died; what is sent to them is dropped. ``bytes`` counts what this rank
    has sent, by the name of the path.
    """

    def __init__(self, comm: Any, watch: Callable[[], None], dead: Set[int] = frozenset()) -> None:
        self.comm, self.dead, self._watch = comm, dead, watch
        self.bytes: dict[str, int] = {}
        self._under_way: list[tuple[Any, Bytes]] = []
        self._inboxes: list[Inbox] = []
        self._taken, self._seconds = 0, NAP

    def inbox(self, peer: int, tag: int, longest: int) -> Inbox:
        """An inbox of this rank, for messages whose payload has at most `longest` bytes."""
        self._inboxes.append(Inbox(self.comm, peer, tag, HEAD + longest))
        return self._inboxes[-1]

    def send(self, path: str, peer: int, tag: int, message: Bytes) -> None:
        """Begin to send a message, which must not change any more."""
        self._sweep()
        request = _alive(lambda: self.comm.Isend(message, dest=peer, tag=tag))
        if request is not None:
            self._under_way.append((request, message))
            self.bytes[path] = self.bytes.get(path, 0) + len(message)

    def _sweep(self) -> None:
        """Keep the messages that have not left, and whose receivers live."""
        self._under_way = [(request, kept) for request, kept in self._under_way if _alive(request.Test) is False]

    def wait(self, inbox: Inbox) -> Message:
        """The next message of an inbox."""
        while (found := inbox.take()) is None:
            self.nap()
        return found

    def nap(self) -> None:
        """Rest for a moment, as nothing was found; for a longer one if nothing has come since the last one."""
        self._watch()
        taken = sum(inbox.taken for inbox in self._inboxes)
        self._seconds = NAP if taken != self._taken else min(2 * self._seconds, LONGEST)
        self._taken = taken
        time.sleep(self._seconds)

    def flush(self) -> None:
        """Wait until all that was sent has left."""
        self._sweep()
        while self._under_way:
            self.nap()
            self._sweep()

    def close(self) -> None:
        """Send and receive nothing any more."""
        self.flush()
        for inbox in self._inboxes:
            inbox.close()
