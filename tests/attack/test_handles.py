"""Handles to communicators: several to one, dropped, collected, freed, and used afterwards."""

import pytest


def test_second_handles_outlive_ours(attack, mpi):
    attack(mpi, 2, "handles")


@pytest.mark.slow
def test_every_kind_of_handle_to_every_kind_of_communicator(attack, mpi):
    attack(mpi, 3, "handles", "all")
