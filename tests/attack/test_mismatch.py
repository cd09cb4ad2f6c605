"""All pairs of calls that differ: every rank is told, in this call or in the next one, and not by a timeout."""

import pytest
from jobs import MPIS

ENGINES = ["node", "schedules", "both"]
#: Schedules on every MPI, whose messages differ; what the node-local engine finds by itself, on one of them each.
ALL = [(mpi, "schedules", 3) for mpi in MPIS]
ALL += [("impi", "schedules", 2)]
ALL += [("mpich", "node", 2), ("impi", "node", 3), ("openmpi", "both", 2), ("mpich", "both", 3)]
OTHERS = [(form, odd) for form in ("blocking", "non-blocking") for odd in ("first", "middle", "last")]
OTHERS.remove(("blocking", "last"))


@pytest.mark.quick("mpich-node-non-blocking-middle", "mpich-schedules-blocking-last", "impi-node-blocking-last")
@pytest.mark.parametrize(("form", "odd"), [("blocking", "last"), ("blocking", "first"), ("non-blocking", "middle")])
@pytest.mark.parametrize("engine", ENGINES)
def test_some_pairs(attack, mpi, engine, form, odd):
    attack(mpi, 3, "mismatch", engine, "3", "50", form, odd, code=None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("form", "odd"), OTHERS)
@pytest.mark.parametrize("engine", ENGINES)
def test_more_pairs(attack, mpi, engine, form, odd):
    attack(mpi, 3, "mismatch", engine, "1", "11", form, odd, timeout=400, code=None)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mpi", "engine", "ranks"), ALL)
def test_all_pairs(attack, mpi, engine, ranks):
    attack(mpi, ranks, "mismatch", engine, "0", "1", "blocking", "last", timeout=1500, code=None)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["blocking", "non-blocking"])
def test_all_pairs_when_calls_are_checked(attack, form):
    env = {"COLLECTIVES_CHECK": "1"}
    attack("impi", 3, "mismatch", "both", "0", "1", form, "last", timeout=1500, code=None, env=env)
