"""Ranks that come late to calls which the others have given up."""

import pytest


@pytest.mark.parametrize("engine", ["node", "schedules"])
def test_late_ranks(attack, mpi, engine):
    attack(mpi, 3, "late", engine, "10", "1", code=None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("engine", ["node", "schedules"])
def test_many_late_ranks(attack, mpi, engine, ranks):
    attack(mpi, ranks, "late", engine, "150", str(ranks), timeout=400, code=None)


def test_all_that_is_under_way_is_given_up(attack, mpi):
    attack(mpi, 3, "under_way", code=None, lines=3)
