"""What is sent to the socket where ranks answer each other can neither stop them nor mislead them."""

import pytest


def test_floods_and_garbage(attack, mpi):
    attack(mpi, 2, "inquiry_flood")


def test_threads_that_take_each_others_letters(attack, mpi):
    attack(mpi, 1, "letters")


@pytest.mark.parametrize("each", [4, pytest.param(1, marks=pytest.mark.slow)])  # of the names that it knows
@pytest.mark.parametrize("way", ["near", "far", "checked"])
def test_files_with_very_long_names(attack, mpi, way, each):
    """Answers of more than 8 KiB are cut, and still understood; names that are not UTF-8 are told as well."""
    env = {"COLLECTIVES_CHECK": str(int(way == "checked"))}
    attack(mpi, 2, "long_paths", way, str(each), code=None, env=env)
