"""Forked children of ranks whose arrays lie on the heap: workers, arguments that the parent drops, other programs."""

import pytest
from jobs import torch_for

KINDS = (
    "pool", "forks_beside_threads", "handed_over", "grandchildren", "given_back", "written_by_children", "others",
    "requests", "revoked",
)  # fmt: skip


def test_forks(attack, mpi):
    attack(mpi, 2, "forks", "all", "0.5")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
def test_many_forks(attack, mpi, kind):
    attack(mpi, 2, "forks", kind, "8", timeout=300)


@pytest.mark.long
def test_children_that_hold_buckets_of_torch(attack):
    attack("torch", 2, "forks_torch", "10")


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["mpich", "impi"])
def test_children_that_hold_buckets_of_torch_on_other_mpis(attack, mpi):
    attack(mpi, 2, "forks_torch", "40", env=torch_for(mpi))
