"""Activations and gradients on their way between the stages of a pipeline, by non-blocking messages."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..models.nn import Array
from ..tensors import OF_ML_DTYPES, extended_type
from ..under_way import kept_for_ever
from .placement import Placement
from .watch import NOTICE, Watch

__all__ = ["Channel", "Transfers"]

HEADER = 4096  # bytes of the message that tells shapes


class Channel(NamedTuple):
    """One direction of an edge between virtual stages: activations to `target`, or gradients back to `source`."""

    source: int
    target: int
    back: bool


class _Posted(NamedTuple):
    arrays: list[Array]
    requests: list[Any]


class Transfers:
    """Sends and receives lists of arrays along the `edges` of a pipeline, in the order of the calls on each edge.

    `placement` says which rank is at the other end for a micro-batch. `key` stands for the shapes of the arrays: they
    are sent once for each key, edge and rank, before the first activations of that key. Gradients have the shapes of
    the activations. Sends do not wait. A receive is posted when the one before is waited for, so that a message arrives
    while the one before is computed with. Raises ValueError if arrays of a key have other
    shapes than before, PeerFailure if another stage fails.
    """

    def __init__(self, edges: Sequence[tuple[int, int]], placement: Placement, watch: Watch) -> None:
        self._comm, self._placement, self._watch = watch.messages, placement, watch
        self._numbers = {edge: number for number, edge in enumerate(edges)}
        self._shapes: dict[tuple[int, int, int, Hashable], list[tuple[tuple[int, ...], np.dtype[Any]]]] = {}
        self._posted: dict[tuple[Channel, int], _Posted] = {}  # by micro-batch, in the order of the messages
        self._sent: deque[tuple[Any, Array]] = deque()
        self._header: Array | None = None  # that is waited for

    def _tag(self, channel: Channel, header: bool = False) -> int:
        number = self._numbers[channel.source, channel.target]
        return NOTICE + 1 + 3 * number + (2 if header else int(channel.back))

    def send(self, channel: Channel, micro_batch: int, key: Hashable, arrays: Sequence[Array]) -> None:
        """Send arrays, which must not change any more."""
        peer = self._placement.rank(channel.source if channel.back else channel.target, micro_batch)
        told = [(array.shape, array.dtype) for array in arrays]
        known = self._shapes.setdefault((channel.source, channel.target, peer, key), [])
        if not known:
            known.extend(told)
            self._post(_encoded(told), peer, self._tag(channel, header=True))
        elif known != told:
            raise ValueError(f"stage {channel.source} sends {told} where it has sent {known} for the same input shapes")
        for array in arrays:
            self._post(_as_bytes(array), peer, self._tag(channel))
        self.progress()

    def _post(self, array: Array, peer: int, tag: int) -> None:
        self._sent.append((self._comm.Isend(array, peer, tag), array))

    def progress(self) -> None:
        """Let messages go on, and forget those that have gone."""
        while self._sent and self._sent[0][0].Test():
            self._sent.popleft()

    def _expect(self, channel: Channel, micro_batch: int, key: Hashable) -> None:
        """Post the receives of the arrays of a micro-batch, if their shapes are known, unless that was done."""
        peer = self._sender(channel, micro_batch)
        shapes = self._shapes.get((channel.source, channel.target, peer, key))
        if (channel, micro_batch) in self._posted or shapes is None:
            return
        arrays = [np.empty(shape, dtype) for shape, dtype in shapes]
        requests = [self._comm.Irecv(_as_bytes(array), peer, self._tag(channel)) for array in arrays]
        self._posted[channel, micro_batch] = _Posted(arrays, requests)

    def _sender(self, channel: Channel, micro_batch: int) -> int:
        """The rank from which the arrays of a micro-batch come on a channel."""
        return self._placement.rank(channel.target if channel.back else channel.source, micro_batch)

    def receive(
        self, channel: Channel, micro_batch: int, key: Hashable, following: tuple[int, Hashable] | None = None
    ) -> list[Array]:
        """Wait for the next arrays of a channel, those of a micro-batch. `following` is the one after it, with its key.

        Its receive is posted before the wait: after it, that would keep the stage from its work.
        """
        peer = self._sender(channel, micro_batch)
        edge = (channel.source, channel.target, peer, key)
        if edge not in self._shapes:
            self._header = np.zeros(HEADER, np.uint8)
            self._wait(self._comm.Irecv(self._header, peer, self._tag(channel, header=True)))
            self._shapes[edge], self._header = _decoded(self._header), None
        self._expect(channel, micro_batch, key)
        if following is not None:
            self._expect(channel, *following)
        for request in self._posted[channel, micro_batch].requests:
            self._wait(request)
        return self._posted.pop((channel, micro_batch)).arrays  # not before, for a wait may raise

    def _wait(self, request: Any) -> None:
        self._watch.wait(request)
        self.progress()

    def abandon(self) -> None:
        """Give up what is under way, after an error. Its memory stays, since other stages may still send."""
        kept_for_ever((list(self._posted.values()), list(self._sent), self._header, self._watch))
        self._posted.clear()
        self._sent.clear()

    def finish(self) -> None:
        """Wait until all that was sent has gone."""
        while self._sent:
            self._watch.wait(self._sent[0][0])
            self._sent.popleft()


def _as_bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _encoded(told: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> Array:
    text = json.dumps([[dtype.name, list(shape)] for shape, dtype in told]).encode()
    if len(text) > HEADER:
        raise ValueError(
            f"a stage sends {len(told)} arrays to another one; their shapes do not fit into {HEADER} bytes"
        )
    header = np.zeros(HEADER, np.uint8)
    header[: len(text)] = np.frombuffer(text, np.uint8)
    return header


def _decoded(header: Array) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
    told = json.loads(bytes(header).rstrip(b"\0"))
    return [(tuple(shape), extended_type(n) if n in OF_ML_DTYPES else np.dtype(n)) for n, shape in told]
