"""Exceptions of signals' handlers at any moment of a blocking call."""

import pytest


@pytest.mark.parametrize("where", ["finish", "wait", "anywhere"])
def test_the_others_are_told(attack, mpi, where):
    attack(mpi, 2, "interrupted", where, code=None)


def test_a_call_on_memory_is_told_before_its_limit_is_known(attack, mpi):
    attack(mpi, 2, "interrupted", "limit", "memory", code=None)


def test_a_call_of_the_python_executor_is_given_up_before_it_waits(attack, mpi):
    attack(mpi, 2, "interrupted", "end_walk", "python", code=None)


def test_a_call_that_has_failed_is_recorded(attack, mpi):
    attack(mpi, 2, "interrupted", "finish", "mismatch", code=None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kind",
    ["ring", "nonblocking", "nonblocking ring", "persistent", "objects", "python", "memory"],
    ids=lambda k: k.replace(" ", "_"),
)
def test_in_every_kind_of_call(attack, mpi, kind):
    attack(mpi, 2, "interrupted", "anywhere", kind, code=None)
