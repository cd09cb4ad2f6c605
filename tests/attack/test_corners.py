"""What was wrong once in a program of a few lines."""

import pytest

#: Ranks of each; those not named here have two.
RANKS = {"failed_creations": 1, "limited_children": 1, "names": 4, "secret_memory": 3}
NAMES = [
    "lists", "list_of_a_blocking_call", "groups", "read_only_roots", "no_descriptors", "late_in_an_exit_handler",
    "finalizer_in_a_wait", "thread_without_a_frame", "handler_within_an_op", "twice_in_place", "failed_creations",
    "inherited_by_idup", "quotas", "names", "limited_children", "secret_memory",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_is_right(attack, mpi, name):
    attack(mpi, RANKS.get(name, 2), "corners", name)


@pytest.mark.parametrize("name", ["calls_within_an_op", "last_of_a_failed_call"])
def test_is_right_though_calls_fail(attack, mpi, name):
    attack(mpi, 2, "corners", name, code=None, lines=2)


def test_thread_levels_may_differ(attack):
    """Intel MPI and MPICH give all ranks the level that one of them asks for."""
    attack("openmpi", 2, "corners", "levels")


def test_the_exchange_of_checks_is_never_mpis(attack, mpi):
    env = {"COLLECTIVES_CHECK": "1", "COLLECTIVES_ALGORITHM": "allgather=mpi,allreduce=mpi"}
    attack(mpi, 2, "corners", "checked_by_mpi", env=env)
