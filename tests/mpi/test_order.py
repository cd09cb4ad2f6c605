"""Programs that must not hang: requests, blocking calls and other communicators in orders that differ by rank."""

import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
SUM = SIZE * (SIZE - 1) // 2


@pytest.fixture
def pair(world):
    """Two communicators."""
    other = world.Dup()
    yield world, other
    other.Free()


@pytest.mark.parametrize("algorithm", [None, "mpi", "ring"])
@pytest.mark.parametrize("count", [1, 100_000])
def test_a_barrier_elsewhere_before_or_after_the_wait(pair, algorithm, count):
    one, other = pair
    for turn in range(10):
        a = np.full(count, RANK)
        request = one.Iallreduce(MPI.IN_PLACE, a, algorithm=algorithm)
        if (RANK + turn) % 2:
            other.Barrier()
            request.Wait()
        else:
            request.Wait()
            other.Barrier()
        assert (a == SUM).all()


def test_mixed_orders_on_two_communicators(pair):
    """Each rank begins and ends its calls on two communicators in an order of its own."""
    chance = np.random.default_rng(RANK)
    for _ in range(10):
        arrays = [[np.full(1 + 5000 * i, RANK) for i in range(4)] for _ in pair]
        requests, began = [], [0, 0]
        while sum(began) < 8:
            which = int(chance.integers(2)) if max(began) < 4 else int(began[0] == 4)
            requests.append(pair[which].Iallreduce(MPI.IN_PLACE, arrays[which][began[which]]))
            began[which] += 1
        for i in chance.permutation(8):
            requests[i].Wait()
        assert all((a == SUM).all() for some in arrays for a in some)


def test_all_kinds_at_once_in_waitall(pair):
    """Ours, MPI's collectives and MPI's messages, ended by MPI's own waits."""
    one, other = pair
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    for end in (
        MPI.Request.Waitall, lambda rs: [MPI.Request.Waitany(rs) for _ in rs],
        lambda rs: [time.sleep(1e-5) for _ in iter(lambda: MPI.Request.Testall(rs), True)],
    ):  # fmt: skip
        a, b, c, d = np.full(9, RANK), np.zeros(9 * SIZE), np.full(50_000, RANK), np.zeros(1)
        scattered = MPI.DOUBLE.Create_vector(9, 1, 2).Commit()
        gaps = np.zeros(18 * SIZE)
        target = MPI.DOUBLE.Create_vector(9, 1, 2).Create_resized(0, 144).Commit()
        requests = [
            one.Iallreduce(MPI.IN_PLACE, a), one.Iallgather(a.astype(float), b),
            one.Irecv(d, left, 5), other.Ibcast(c), MPI.Intracomm(other).Ibarrier(),
            one.Isend(np.array([float(RANK)]), right, 5), other.Iallreduce(MPI.IN_PLACE, c.copy(), algorithm="mpi"),
            other.Iallgather(np.full(9, float(RANK)), [gaps, 1, target]),
        ]  # fmt: skip
        end(requests)
        assert (a == SUM).all()
        assert (c == 0).all()
        assert d == left
        assert (gaps.reshape(SIZE, 9, 2)[:, :, 0] == np.arange(SIZE)[:, None]).all()  # unpacked before MPI says so
        assert (gaps.reshape(SIZE, 9, 2)[:, :, 1] == 0).all()
        for kind in (scattered, target):
            kind.Free()


def test_blocking_calls_while_others_are_in_flight(world):
    for collective in COLLECTIVES.values():
        if collective.base in ("allreduce", "scan", "allgather", "bcast"):
            pending = [world.Iallreduce(MPI.IN_PLACE, np.full(3000, RANK)) for _ in range(3)]
            total = np.array([RANK])
            world.Allreduce(MPI.IN_PLACE, total)
            world.Barrier()
            assert total == SUM
            assert world.allgather(RANK) == list(range(SIZE))
            for request in reversed(pending):
                request.Wait()


def test_a_busy_python_thread_beside(pair):
    """It takes Python's lock whenever it can."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            sum(range(1000))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(20):
            a = np.full(1 + 1000 * i, RANK)
            request = pair[0].Iallreduce(MPI.IN_PLACE, a)
            pair[1].Barrier()
            assert pair[0].bcast(i) == i
            request.Wait()
            assert (a == SUM).all()
    finally:
        stop.set()
        thread.join()


def test_a_send_that_is_received_after_a_collective(world):
    """The receiver waits in our collective first: MPI must move meanwhile."""
    large = np.full(1_000_000, RANK)
    got = np.zeros_like(large)
    request = world.Isend(large, (RANK + 1) % SIZE, 3)
    world.Barrier()
    world.Allgather(np.array([RANK]), np.zeros(SIZE, int))
    world.Recv(got, (RANK - 1) % SIZE, 3)
    request.Wait()
    assert (got == (RANK - 1) % SIZE).all()


def test_communicators_made_and_freed(world):
    for i in range(300):
        comm = world.Split(i % 2, -RANK) if i % 10 == 0 else world.Dup()
        comm.Bcast(np.zeros(3))
        comm.Free()


@pytest.mark.parametrize("form", ["dropped", "freed"])
def test_requests_nobody_waits_for(form):
    comm = collectives.Communicator(MPI.COMM_WORLD)
    for i in range(30):
        request = comm.Iallgather(np.full(i, RANK), np.zeros(i * SIZE, int))
        if form == "freed":
            request.Free()
    comm.Free()
