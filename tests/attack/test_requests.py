"""Requests used against the rules of MPI: an error on the rank that does it, or what was meant."""


def test_started_twice_and_waited_for_by_threads(attack, mpi):
    attack(mpi, 2, "requests_twice")
