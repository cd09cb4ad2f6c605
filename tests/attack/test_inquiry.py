"""What is sent to the socket where ranks answer each other can neither stop them nor mislead them."""


def test_floods_and_garbage(attack, mpi):
    attack(mpi, 2, "inquiry_flood")
