"""Exchanges with neighbours of which one does not come (tests/mpi/test_exchanges.py has all others)."""

import re

import pytest
from jobs import ROOT, mpiexec

PROGRAMS = ROOT / "tests/communicator/programs"


@pytest.mark.parametrize(("name", "algorithm"), [("Neighbor_alltoall", "shm"), ("Neighbor_allgather", "linear")])
def test_a_timeout_names_the_neighbour_that_is_late(name, algorithm):
    """And a rank that is no neighbour of the late one does not wait for it."""
    done = mpiexec("openmpi", 4, str(PROGRAMS / "late_neighbour.py"), name, algorithm, timeout=60)
    told = {int(rank): text for rank, text in re.findall(r"^rank (\d): (.*)$", done.stdout, re.MULTILINE)}
    assert told[0] == "from [3, 1]", done.stdout + done.stderr
    for rank in (1, 3):
        assert f"{name.lower()}" in told[rank], told
        assert "waiting for rank 2" in told[rank], told


def test_ranks_that_are_late_delay_none_that_sends_them_nothing():
    """Blocks in shared memory are read where they lie, and a sender waits for those alone who read them."""
    done = mpiexec("openmpi", 4, str(PROGRAMS / "late_stranger.py"), timeout=60)
    told = re.findall(r"^rank ([01]): \w+: (.*)$", done.stdout, re.MULTILINE)
    assert sorted(told) == [("0", "from 1 and 1")] * 2 + [("1", "from 0 and 0")] * 2, done.stdout + done.stderr
