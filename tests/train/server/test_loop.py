"""A server that takes over the shard of one that has died, and its workers, all driven from here, step by step.

Ranks 0 and 1 train, rank 2 has died, and rank 3 has copies of some of its messages.
"""

import numpy as np
import pytest
from simulated_servers import Servers

from collectives import train
from collectives.train.server.client import Link
from collectives.train.server.clocks import Policy
from collectives.train.server.loop import Server
from collectives.train.server.messages import COPY, REPLIES, REQUEST, Kind, pack, unpack
from collectives.train.server.transfers import Inbox
from collectives.train.threads.comm import ThreadComm
from collectives.train.threads.job import Group, Job

WORKERS, PRIMARY, BACKUP = (0, 1), 2, 3
SHARD, OWN = 0, 1
CAPACITY = 4096  # bytes, more than any message here


class Ranks:
    """All ranks, in one thread; rank 3 has a server."""

    def __init__(self):
        group = Group(Job(4, 10.0), list(range(4)))
        self.comms = [ThreadComm(group, rank) for rank in range(4)]
        self._inboxes = {}
        net = train.Sequential(train.Linear(5, 2, rng=np.random.default_rng(0)))
        services = Servers(net, train.SGD(net.parameters(), 0.1), 2, Policy(), servers=2).services
        self.server = Server(
            self.comms[BACKUP], dict(enumerate(services)), OWN, WORKERS, CAPACITY, None, primary=PRIMARY
        )

    def copied(self, packed):
        """The server gets a copy from rank 2."""
        self.comms[PRIMARY].Isend(packed, BACKUP, tag=COPY)

    def sent(self, packed):
        """The server gets a message from its worker."""
        self.comms[unpack(packed).worker].Isend(packed, BACKUP, tag=REQUEST)

    def handle(self):
        """The server handles all that it has got."""
        while self.server._pass():
            pass

    def replies(self, worker):
        """The numbers of the messages that were replied to since the call before."""
        if worker not in self._inboxes:
            self._inboxes[worker] = Inbox(self.comms[worker], BACKUP, REPLIES + SHARD, CAPACITY)
        found = []
        while (packed := self._inboxes[worker].take()) is not None:
            found.append(unpack(packed).number)
        return found


def end_of_clock(kind, worker, number):
    """A STEP or a MEET."""
    rates = [np.array([0.1])] if kind == Kind.STEP else []
    return pack(kind, worker, SHARD, number, 1, 0, *rates)


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.MEET])
def test_a_worker_that_has_come_over_gets_the_reply_for_which_it_waits(kind):
    """Copies that came after it were handled, and the replies to all that had waited for them were dropped."""
    ranks = Ranks()
    ranks.copied(end_of_clock(kind, 0, 1))
    ranks.handle()
    ranks.copied(end_of_clock(kind, 1, 1))
    ranks.sent(end_of_clock(kind, 0, 1))  # rank 0 knows of the death, and its message is handled before the copy
    ranks.handle()
    assert ranks.replies(0) == []
    ranks.sent(end_of_clock(kind, 1, 1))
    ranks.handle()
    assert (ranks.replies(0), ranks.replies(1)) == ([1], [1])


def test_copies_are_handled_as_long_as_no_worker_has_come_over():
    ranks = Ranks()
    for worker in WORKERS:
        ranks.copied(end_of_clock(Kind.STEP, worker, 1))
    ranks.handle()
    assert (ranks.replies(0), ranks.replies(1)) == ([], [])  # rank 2 replies
    for worker in WORKERS:
        ranks.sent(end_of_clock(Kind.STEP, worker, 1))
    ranks.handle()
    assert (ranks.replies(0), ranks.replies(1)) == ([1], [1])


def test_a_reply_that_comes_twice_is_not_taken_for_that_to_the_next_message():
    """A worker learns of the death after its message was replied to, and sends it again."""
    ranks = Ranks()
    link = Link(ranks.comms[0], SHARD, [PRIMARY, BACKUP], CAPACITY, lambda: {PRIMARY})
    link.ask(Kind.STEP, 1, 0, np.array([0.1]))
    ranks.copied(end_of_clock(Kind.STEP, 0, 1))
    ranks.handle()
    ranks.sent(end_of_clock(Kind.STEP, 1, 1))
    ranks.handle()
    assert link.reply().number == 1
    link.ask(Kind.STEP, 1, 0, np.array([0.1]))
    ranks.sent(end_of_clock(Kind.STEP, 1, 2))
    ranks.handle()
    assert link.reply().number == 2
    assert ranks.replies(0) == []
