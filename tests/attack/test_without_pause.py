"""A program that calls without a pause is not stuck, however long it does so: the watchdog leaves it alone."""


def test_calls_without_a_pause_are_not_taken_for_one(attack, mpi):
    attack(mpi, 2, "without_pause", "1.5", "0.02", env={"COLLECTIVES_STALL": "0.5"})
