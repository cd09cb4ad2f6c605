"""Arguments that no careful user would pass: what mpi4py does with them, or a clear error before anything is sent."""

import pytest

#: Of 200,000 cases of the comparison one in so many is made in the quick part, and in the other.
QUICK, THOROUGH = 997, 7


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_same_as_mpi4py(attack, mpi, ranks):
    attack(mpi, ranks, "arguments", str(QUICK), timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_thirty_thousand_cases_are_the_same_as_mpi4py(attack, mpi, ranks):
    attack(mpi, ranks, "arguments", str(THOROUGH), timeout=3000)


def test_devices_and_ops_are_refused(attack, mpi):
    attack(mpi, 2, "arguments_devices")


def test_buffers_are_held(attack, mpi):
    attack(mpi, 2, "arguments_held")


def test_types_differ(attack, mpi):
    attack(mpi, 3, "arguments_types")


@pytest.mark.parametrize("algorithm", ["shm", "linear"])
def test_types_differ_and_are_checked(attack, mpi, algorithm):
    attack(mpi, 2, "arguments_types", algorithm, env={"COLLECTIVES_CHECK": "1"})
