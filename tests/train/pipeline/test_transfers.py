"""Messages of a pipeline that are still to come when a stage fails: their memory stays."""

import gc
import weakref

import numpy as np
import pytest

from collectives.errors import PeerFailure
from collectives.train.pipeline.placement import Placement
from collectives.train.pipeline.transfers import HEADER, Channel, Transfers, _encoded


class Messages:
    """A communicator that notes the memory into which messages will be received."""

    def __init__(self):
        self.rooms = []

    def Irecv(self, buffer, peer, tag):
        owner = buffer if buffer.base is None else buffer.base
        self.rooms.append((len(owner.view(np.uint8).reshape(-1)), weakref.ref(owner)))
        return buffer


class Watch:
    """Waits for headers, which tell of 1000 numbers, as often as it may; then another stage has failed."""

    def __init__(self, headers):
        self.messages, self.headers = Messages(), headers

    def wait(self, request):
        if not self.headers:
            raise PeerFailure("another stage failed")
        self.headers -= 1
        request[:] = _encoded([((1000,), np.dtype("f8"))])


@pytest.mark.parametrize(("headers", "lengths"), [(0, [HEADER]), (1, [HEADER, 8000, 8000])])
def test_memory_that_a_message_may_still_reach_is_not_freed(headers, lengths):
    """That of the message that was waited for, too: its sender may be late, and send after the failure."""
    watch = Watch(headers)
    transfers = Transfers([(0, 1)], Placement(1, 2), watch)
    with pytest.raises(PeerFailure):
        transfers.receive(Channel(0, 1, False), 0, "key", (1, "key"))
    transfers.abandon()
    del transfers
    gc.collect()
    rooms = watch.messages.rooms
    assert [length for length, _ in rooms] == lengths
    assert all(room() is not None for _, room in rooms[headers:])
