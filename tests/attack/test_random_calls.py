"""Random calls, also from several threads (tests/mpi/random_calls.py). COLLECTIVES_CASES makes it longer."""

import os

import pytest

CASES = int(os.environ.get("COLLECTIVES_CASES", "1500"))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (3, 3), (5, 2)])
def test_every_size_form_and_thread(attack, mpi, ranks, threads):
    program, seed = "../../mpi/random_calls", str(10 * ranks + threads)
    attack(mpi, ranks, program, str(CASES), seed, str(threads), timeout=300 + CASES / 5)
