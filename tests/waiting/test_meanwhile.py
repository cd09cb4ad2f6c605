"""What else a rank does in a long wait. Without MPI."""

import time

import pytest

from collectives import CollectiveError, CollectiveTimeout
from collectives.arguments.signature import Call
from collectives.waiting import waiting


class Run:
    """A call that MPI serves, and which does not end."""

    plan = ranks = None

    def call(self):
        return Call(3, "allreduce", "mpi", 10, "float64", "SUM", None)

    def wait(self, yield_at_once, limit):
        time.sleep(limit * 1e-9)
        return False

    def withdraw(self):
        return 0


class Alone(waiting.Waiting):
    """The only rank, which does more than to wait if that is said."""

    identity, mpi_queries = "alone", None

    def __init__(self, meanwhile):
        self.set_group(0, 1)
        self.yield_at_once = True
        self.waits, self.left, self.tested, self.neighbours = [], {}, {}, {}
        self.meanwhile = meanwhile


def test_it_is_done_again_and_again():
    done = []
    with pytest.raises(CollectiveTimeout):
        Alone(lambda: done.append(time.monotonic())).wait(Run(), 0.2)
    assert len(done) > 2


def test_what_it_raises_ends_the_call():
    def stop():
        raise CollectiveError("stopped")

    context, began = Alone(stop), time.monotonic()
    with pytest.raises(CollectiveError, match="^stopped$"):
        context.wait(Run(), 30)
    assert time.monotonic() - began < 10
