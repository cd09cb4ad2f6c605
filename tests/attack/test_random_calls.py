"""Random calls, also from several threads, as in tests/runtime/test_random.py. COLLECTIVES_CASES makes it longer."""

import os

import pytest

PROGRAM = "../../runtime/programs/random_calls"
CASES = int(os.environ.get("COLLECTIVES_CASES", "1500"))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (3, 3), (5, 2)])
def test_every_size_form_and_thread(attack, mpi, ranks, threads):
    seed = str(10 * ranks + threads)
    attack(mpi, ranks, PROGRAM, str(CASES), seed, str(threads), timeout=300 + CASES / 5)


@pytest.mark.quick("mpich-2")
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_ask_each_other_find_no_fault(attack, mpi, ranks):
    """What they tell of their calls is never taken for another call."""
    attack(mpi, ranks, PROGRAM, "150", str(ranks), "1", "1")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("ranks", "threads"), [(2, 2), (3, 1), (4, 1)])
def test_many_that_ask_each_other(attack, mpi, ranks, threads):
    attack(mpi, ranks, PROGRAM, str(CASES), str(20 * ranks), str(threads), "1", timeout=300 + CASES / 5)
