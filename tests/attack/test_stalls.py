"""A wait without a timeout that lasts longer than COLLECTIVES_STALL is reported once: who waits, where, for whom."""

import pytest


def test_a_long_wait_is_reported_once(attack, mpi):
    attack(mpi, 3, "stalls", "1", "3", env={"COLLECTIVES_STALL": "0.4"})


@pytest.mark.slow
def test_so_is_that_of_every_kind(attack, mpi):
    attack(mpi, 3, "stalls", "1", env={"COLLECTIVES_STALL": "0.4"})


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["0", "60"])
def test_none_is_where_it_is_off_or_longer(attack, mpi, seconds):
    attack(mpi, 3, "stalls", "0", env={"COLLECTIVES_STALL": seconds})
