"""Memory of messages that are under way when their exchange is given up: it stays until they are complete."""

import gc
import weakref

import numpy as np
import pytest

from collectives.errors import PeerFailure
from collectives.train import under_way
from collectives.train.server.transfers import Inbox
from collectives.train.strategies.gossip import Exchange
from collectives.train.strategies.pairs import Active, Passive


class Messages:
    """A communicator whose messages are complete once that is said, or fail as by a death. It notes their memory."""

    rank, complete, revoked = 0, False, False

    def __init__(self):
        self.memory = []

    def Irecv(self, buffer, source=None, tag=None):
        return Request(self, buffer)

    Isend = Irecv


class Revoked(Exception):
    """What MPI (ULFM) raises for messages of a revoked communicator."""


class Request:
    def __init__(self, comm, buffer):
        self._comm, self._buffer = comm, buffer
        comm.memory.append(weakref.ref(buffer))

    def Test(self):
        if self._comm.revoked:
            raise Revoked
        return self._comm.complete

    def Wait(self):
        assert self._comm.complete

    Cancel = Wait


def lost():
    raise PeerFailure("rank 1 has ended")


def exchange(comm):
    """Gossip: two messages come, one goes."""
    made = Exchange(comm, np.zeros(1000), 2, 0, lost)
    made.start([1, 2], [1])
    return made, made.wait


def active(comm):
    """AD-PSGD: a rank has asked, and goes on."""
    made = Active(comm, [np.zeros(1000)])
    made.ask(1)
    return made, made.look


def passive(comm):
    """AD-PSGD: a rank expects to be asked."""
    made = Passive(comm, [np.zeros(1000)])
    assert made.look() == 0
    return made, made.close


def inbox(comm):
    """Servers and actors: the next message is expected, and not any more after `close`."""
    made = Inbox(comm, 1, 0, 8000)
    return made, made.close


KINDS = pytest.mark.parametrize("kind", [exchange, active, passive, inbox])


@KINDS
def test_memory_of_messages_that_may_come_stays(kind):
    comm = Messages()
    made, end = kind(comm)
    if kind is exchange:
        with pytest.raises(PeerFailure):
            end()
    assert comm.memory
    del made, end
    gc.collect()
    assert all(memory() is not None for memory in comm.memory)


@KINDS
def test_memory_of_complete_messages_is_freed(kind):
    comm = Messages()
    made, end = kind(comm)
    comm.complete = True
    end()
    assert comm.memory
    del made, end
    gc.collect()
    assert all(memory() is None for memory in comm.memory)


def test_a_message_that_is_not_expected_any_more_does_not_come():
    """MPI calls the request of a cancelled receive complete."""
    comm = Messages()
    made = Inbox(comm, 1, 0, 8000)
    assert made.take() is None
    comm.complete = True
    made.close()
    assert made.take() is None


@pytest.mark.parametrize("kind", [exchange, active, passive])
def test_memory_of_revoked_messages_is_freed(kind, monkeypatch):
    monkeypatch.setattr(under_way, "is_death", lambda error: isinstance(error, Revoked))
    comm = Messages()
    made, _ = kind(comm)
    comm.revoked = True
    made.abandon()
    del made, _
    gc.collect()
    assert comm.memory
    assert all(memory() is None for memory in comm.memory)
