"""A rank that does not come where communicators and persistent calls are made or freed: the others say so in time."""

import pytest


def test_timeouts(mpi, attack):
    attack(mpi, 3, "making", code=None, lines=3)


@pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.slow)])  # of the calls that it knows
def test_wrong_arguments_of_one_rank(attack, mpi, each):
    attack(mpi, 3, "making_arguments", str(each), code=None)
