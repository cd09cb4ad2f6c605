"""What ranks agree on after a step, when some of them are late; between ranks: programs/torch_hostile.py."""

from types import SimpleNamespace

from collectives.train.checkpoint.saver import Vote
from collectives.train.run import votes
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
