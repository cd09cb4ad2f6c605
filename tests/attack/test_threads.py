"""Threads, handlers of signals and finalizers, on one communicator at the same time."""

import pytest


def test_every_wait_is_told_by_its_own_call_and_line(attack, mpi):
    attack(mpi, 2, "threads_waits")


def test_callbacks_of_torch_have_one_server(attack):
    attack("torch", 1, "threads_callbacks")


def test_a_communicator_takes_one_call_at_a_time(attack, mpi):
    attack(mpi, 2, "threads_two")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_call_within_every_call(attack, mpi, ranks):
    attack(mpi, ranks, "threads_two", "all")
