"""Runs of the executor in Python that are given up."""

import contextlib

import pytest
from mpi4py import MPI

from collectives.arguments.signature import Call
from collectives.runtime.reference import Message, Walk

CALL = Call(1, "allreduce", "ring", 8, "float64", "SUM", None)


class Receive:
    """A receive that has come, still comes, or whose sender has died."""

    def __init__(self, outcome):
        self.outcome, self.cancelled = outcome, 0

    def Cancel(self):
        self.cancelled += 1

    def Test(self):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(("outcome", "left"), [(False, 1), (True, 0), (MPI.Exception(MPI.ERR_OTHER), 0)])
def test_receives_are_taken_back(outcome, left):
    receives = [Receive(True), Receive(outcome)]
    rounds = iter([[Message(receive, rank, True) for rank, receive in enumerate(receives)]])
    walk = Walk(rounds, CALL, 8, None)
    with contextlib.suppress(MPI.Exception):
        walk.wait(True, 0)
    assert walk.withdraw() == walk.withdraw() == left
    assert all(receive.cancelled <= 1 for receive in receives)
