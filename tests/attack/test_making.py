"""A rank that does not come where communicators and persistent calls are made or freed: the others say so in time."""


def test_timeouts(mpi, attack):
    attack(mpi, 3, "making", code=None, lines=3)


def test_wrong_arguments_of_one_rank(attack, mpi):
    attack(mpi, 3, "making_arguments", code=None)
