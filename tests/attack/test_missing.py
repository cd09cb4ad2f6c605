"""Errors and reports name the rank that is missing, and not those that wait for it as well."""

import pytest


def test_the_missing_rank_alone_is_named(attack, mpi):
    attack(mpi, 3, "missing", "few", code=None, lines=3)  # MPI_Abort ends a program with broken communicators


@pytest.mark.slow
def test_by_every_algorithm(attack, mpi):
    attack(mpi, 4, "missing", "all", code=None, lines=4, timeout=400)
