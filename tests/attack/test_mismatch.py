"""All pairs of calls that differ: every rank is told, in this call or in the next one, and not by a timeout."""

import pytest

ENGINES = ["node", "schedules", "both"]


@pytest.mark.parametrize("engine", ENGINES)
def test_some_pairs(attack, mpi, engine):
    attack(mpi, 3, "mismatch", engine, "3", "50", code=None)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_all_pairs(attack, mpi, engine, ranks):
    attack(mpi, ranks, "mismatch", engine, "0", "1", timeout=1500, code=None)


@pytest.mark.slow
def test_all_pairs_when_calls_are_checked(attack, mpi):
    attack(mpi, 3, "mismatch", "both", "0", "1", timeout=1500, code=None, env={"COLLECTIVES_CHECK": "1"})
