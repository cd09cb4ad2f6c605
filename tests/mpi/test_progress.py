"""What a test of a request costs, and memory that has no room for its blocks."""

import time

import numpy as np
import pytest
from mpi4py import MPI

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
LATE = 0.5  # seconds


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize("name", [None, "recursive_doubling"])
def test_a_test_does_not_wait(world, name):
    """A program that computes between tests keeps its time, also while it waits for a rank that is late."""
    x, y = np.full(100, float(RANK)), np.empty(100)
    if RANK == SIZE - 1 > 0:
        time.sleep(LATE)
    request, within, begin = world.Iallreduce(x, y, algorithm=name), 0.0, time.perf_counter()
    while True:
        before = time.perf_counter()
        ended = request.Test()
        within += time.perf_counter() - before
        if ended:
            break
        compute(50e-6)
    if SIZE == 2 and RANK == 0:  # with more ranks than cores, a test also gives its core away
        assert within < 0.5 * (time.perf_counter() - begin)
    np.testing.assert_array_equal(y, SIZE * (SIZE - 1) / 2)


def test_empty_memory_with_blocks_is_refused(world):
    """Nothing is dropped that other ranks send."""
    counts = [5 * (q != RANK) for q in range(SIZE)]
    if sum(counts):
        with pytest.raises(ValueError, match="recvbuf"):
            world.Alltoallv([np.ones(5 * SIZE), counts], [np.empty(0), counts])
    world.Barrier()
