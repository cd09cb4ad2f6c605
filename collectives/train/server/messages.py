"""Messages between workers and servers: a header of 64-bit integers, and bytes. Nothing is pickled on the way."""

from __future__ import annotations

import enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..models.nn import Array

Bytes = NDArray[np.uint8]

FIELDS = 8
HEAD = 8 * FIELDS  # bytes of the header
CHUNK = 1 << 20  # bytes to which messages are cut whose length the number of parameters does not bound

REQUEST, COPY, COPIED = 1, 2, 3  # tags: worker to server; a server to its backup, and back
REPLIES = 8  # the tag of replies of shard 0; those of other shards follow


class Kind(enum.IntEnum):
    """What a worker asks for. All but PUSH, PUSH_ROWS and DISCARD have a reply."""

    PUSH = 0  # stage the gradient of a piece: first = piece
    PUSH_ROWS = 1  # stage gradients of rows: first = table, second = number of keys, third = samples of their pass
    DISCARD = 2  # drop what was pushed since the last STEP
    STEP = 3  # end the clock: first = its samples; the reply, which may wait for other workers, has the parameters
    PULL_ROWS = 4  # read rows: first = table, second = array; the reply has them
    PUT_ROWS = 5  # write rows: table, array and steps are in the payload, second = number of keys
    MEET = 6  # wait for all workers; the reply has the parameters
    TAKE = 7  # the next number of a series: first = which series; the reply has it in ``first``
    SAVE = 8  # read a part of the server's state: first = from which byte; the reply's ``second`` is its whole length
    LOAD = 9  # write a part of the server's state: first = from which byte, second = its whole length
    LEAVE = 10  # the worker needs the server no more
    DROP = 11  # the worker has died; a server says so to itself and to its backup


class Message(NamedTuple):
    """A message of or to `worker` about `shard`. ``number`` counts the worker's messages to that shard, from 1.

    A reply has the number of its message. ``third`` is for replies, and for PUSH_ROWS.
    """

    kind: int
    worker: int
    shard: int
    number: int
    first: int
    second: int
    third: int
    payload: Bytes


def pack(
    kind: int, worker: int, shard: int, number: int, first: int, second: int, *arrays: Array, third: int = 0
) -> Bytes:
    """A message as one array of bytes: the header, and all `arrays`, one after the other."""
    size = sum(array.nbytes for array in arrays)
    packed = np.empty(HEAD + size, np.uint8)
    packed[:HEAD].view(np.int64)[:] = kind, worker, shard, number, first, second, third, size
    start = HEAD
    for array in arrays:
        packed[start : start + array.nbytes] = as_bytes(array)
        start += array.nbytes
    return packed


def unpack(packed: Bytes) -> Message:
    """The message that `pack` made, at the beginning of a buffer. Its payload is a view."""
    kind, worker, shard, number, first, second, third, size = packed[:HEAD].view(np.int64).tolist()
    return Message(kind, worker, shard, number, first, second, third, packed[HEAD : HEAD + size])


def as_bytes(array: Array) -> Bytes:
    """The elements of a contiguous array as bytes, a view."""
    return array.reshape(-1).view(np.uint8)
