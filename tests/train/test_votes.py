"""What ranks agree on after a step, when some of them are late; between ranks: programs/torch_hostile.py."""

import signal
from types import SimpleNamespace

from collectives.train import threads
from collectives.train.checkpoint.saver import Vote
from collectives.train.run import votes
from collectives.train.run.decisions import Decisions
from collectives.train.run.votes import News, Votes


class Late:
    """A communicator of two ranks, of which the other has not come yet."""

    rank, size = 0, 2

    def __init__(self):
        self.here, self.waits = False, 0

    def Iallreduce(self, where, vector, op):
        return SimpleNamespace(Test=lambda: self.here, Wait=self.wait)

    def wait(self):
        self.waits += 1


def test_a_vote_that_was_given_up_has_no_result(monkeypatch):
    """A rank that has left the loop before a late one came would else act on a vote, and the late rank not."""
    monkeypatch.setattr(votes, "PATIENCE", 0.01)
    comm, news = Late(), News(0, True, Vote(False, 3))
    mine = Votes(comm)
    mine.cast(news)
    mine.abandon()
    assert mine.result() is None
    assert comm.waits == 1  # before the vector is used again
    mine.cast(news)
    assert mine.result() == news
    mine.cast(news)
    comm.here = True
    mine.abandon()
    assert mine.result() is None
    assert comm.waits == 2


class Nothing:
    """The checkpoints of a run without any."""

    saves = wanted = late = False

    def vote(self):
        return Vote(False, 0)

    def advance(self, vote):
        pass

    def due(self, step, late):
        return False

    def save_if_due(self, step, late, postpone):
        pass


def settled(lockstep, within=None, at=0):
    """What two ranks decide after three steps. Rank 1 has a signal; rank `within` alone is between micro-batches after
    step `at`."""

    def on_rank(comm):
        decisions, found = Decisions(comm, Nothing()), []
        decisions.signals.received = signal.SIGUSR1 if comm.rank == 1 else 0
        for step in range(3):
            strategy = SimpleNamespace(lockstep=lockstep, accumulating=comm.rank == within and step == at)
            found.append(decisions.settle(step, strategy))
            found.append(decisions.waiting)
            if found[-2]:
                break
        decisions.end()
        return found

    (mine, same) = threads.run(2, on_rank, timeout=10)
    assert mine == same
    return mine


def test_ranks_in_step_act_on_the_vote_before_and_others_on_that_of_the_meeting():
    assert settled(True) == [None, False, "SIGUSR1", False]
    assert settled(False) == ["SIGUSR1", False]


def test_all_ranks_wait_for_one_that_is_within_a_step():
    assert settled(False, within=0) == [None, True, "SIGUSR1", False]


def test_ranks_in_step_wait_for_one_that_alone_is_within_a_step():
    """The other one had no gradients in that micro-batch, as in FedAvg if it was not drawn."""
    assert settled(True, within=0, at=1) == [None, False, None, True, "SIGUSR1", False]
