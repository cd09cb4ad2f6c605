"""What is sent to the socket where ranks answer each other can neither stop them nor mislead them."""


def test_floods_and_garbage(attack, mpi):
    attack(mpi, 2, "inquiry_flood")


def test_threads_that_take_each_others_letters(attack, mpi):
    attack(mpi, 1, "letters")
