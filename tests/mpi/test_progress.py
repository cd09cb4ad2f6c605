"""What moves non-blocking calls while the program computes, tests them, or is in another call."""

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


def test_a_call_proceeds_while_another_one_reduces(world):
    """Rank 0 is in a function of the program, which reduces for a while, and its caller cannot move other calls."""

    def slow(a, b, datatype):
        time.sleep(LATE)
        np.frombuffer(b)[:] += np.frombuffer(a)

    op, other = MPI.Op.Create(slow, commute=True), world.Dup()
    x, y, one, total = np.ones(1 << 20), np.empty(1 << 20), np.ones(1), np.empty(1)
    world.Barrier()
    if RANK > 0:
        world.Reduce(one, None, op, algorithm="naive")  # sends, and does not wait for rank 0
        time.sleep(LATE / 10)
    begin = time.perf_counter()
    request = other.Iallreduce(x, y)
    if RANK == 0:
        world.Reduce(one, total, op, algorithm="naive")
    request.Wait()
    lasted = time.perf_counter() - begin
    assert RANK == 0 or lasted < 0.7 * LATE * (SIZE - 1)  # the function was called so often
    assert y[0] == SIZE
    assert RANK > 0 or total[0] == SIZE
    op.Free()
    other.Free()


def test_empty_memory_with_blocks_is_refused(world):
    """Nothing is dropped that other ranks send."""
    counts = [5 * (q != RANK) for q in range(SIZE)]
    if sum(counts):
        with pytest.raises(ValueError, match="recvbuf"):
            world.Alltoallv([np.ones(5 * SIZE), counts], [np.empty(0), counts])
    world.Barrier()
