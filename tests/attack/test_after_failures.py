"""Calls that fail harm no other communicator, no other request and no later program."""


def test_what_goes_on(attack, mpi):
    attack(mpi, 3, "after_failures", code=None)
