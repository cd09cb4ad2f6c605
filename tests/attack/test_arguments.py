"""Arguments that no careful user would pass: what mpi4py does with them, or a clear error before anything is sent."""

import pytest
from jobs import torch_for

#: Of 270,000 cases of the comparison one in so many is made in the quick part, and in the other.
QUICK, THOROUGH = 1499, 97
#: The same of calls whose ranks' types differ. Neither has a divisor in common with the number of forms.
FEW, ALL = "67", "5"


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_as_mpi4py(attack, mpi, ranks):
    attack(mpi, ranks, "arguments", str(QUICK))


def test_usual_arguments_are_the_same_as_mpi4py(attack, mpi):
    attack(mpi, 2, "arguments", "usual")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_thousands_of_cases_are_the_same_as_mpi4py(attack, mpi, ranks):
    attack(mpi, ranks, "arguments", str(THOROUGH), timeout=900)


def test_devices_and_ops_are_refused(attack, mpi):
    attack(mpi, 2, "arguments_devices")


def test_buffers_are_held(attack, mpi):
    attack(mpi, 2, "arguments_held")


def test_buffers_of_both_sides_are_held(attack, mpi):
    attack(mpi, 2, "arguments_held_v", lines=2)


def differ_in_type(attack, mpi, ranks, *arguments, **env):
    """All ranks say what they found; then they end without MPI_Finalize, of which launchers make an error."""
    attack(mpi, ranks, "arguments_types", *arguments, timeout=300, env=env, code=None, lines=ranks)


@pytest.mark.parametrize("every", [FEW, pytest.param(ALL, marks=pytest.mark.slow)])
def test_types_differ(attack, mpi, every):
    differ_in_type(attack, mpi, 3, every)


@pytest.mark.quick("openmpi-schedule-67", "impi-shm-67")
@pytest.mark.parametrize("every", [FEW, pytest.param(ALL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("algorithm", ["shm", "schedule", "mpi"])
def test_types_differ_and_are_checked(attack, mpi, algorithm, every):
    differ_in_type(attack, mpi, 2, every, algorithm, COLLECTIVES_CHECK="1")


def test_tensors_and_elements_that_mpi_does_not_know(attack, mpi):
    attack(mpi, 2, "arguments_torch", env=torch_for(mpi))
