"""Non-blocking and persistent all-reduce: many in flight, waited for in any order and by any of MPI's waits."""

import itertools
import time
from unittest import mock

import numpy as np
import pytest
from forms import Job, ours, settle
from mpi4py import MPI

from collectives.communicator import nonblocking

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
NAMES = ours("allreduce")
RANKS_SUM = SIZE * (SIZE - 1) // 2


@pytest.mark.parametrize("name", [None, "mpi", *NAMES])
def test_many_in_flight_waited_in_other_orders(world, name):
    """Every rank has an order of its own."""
    for count in (None, 40_000):
        jobs = [Job(world.Iallreduce, i, count, algorithm=name) for i in range(20)]
        for i in np.random.permutation(20):
            assert jobs[i].request.Wait()
            jobs[i].check()


def test_segments_in_flight(world):
    jobs = [Job(world.Iallreduce, i, 400_000) for i in range(3)]
    for job in reversed(jobs):
        job.request.Wait()
        job.check()


def test_blocking_and_persistent_calls_in_between(world):
    plan = Job(world.Allreduce_init, 5)
    for i in range(10):
        first = Job(world.Iallreduce, i)
        plan.result[:] = RANK
        plan.request.Start()
        total = np.array([RANK])
        world.Allreduce(MPI.IN_PLACE, total)
        assert total == RANKS_SUM
        world.Barrier()
        plan.request.Wait()
        assert (plan.result == RANKS_SUM).all()
        first.request.Wait()
        first.check()
    plan.request.Free()


def test_test(world):
    job = Job(world.Iallreduce, 3, 10_000)
    while not job.request.Test():
        pass
    job.check()
    assert job.request == MPI.REQUEST_NULL
    assert job.request.Test()
    assert job.request.Wait()
    job = Job(world.Iallreduce, 3)
    while not job.request.test()[0]:
        pass
    job = Job(world.Iallreduce, 3)
    assert job.request.wait() is None
    job.check()


def test_status(world):
    job, status = Job(world.Iallreduce, 3), MPI.Status()
    job.request.Wait(status)
    assert not status.Is_cancelled()
    assert status.Get_count(MPI.BYTE) == 0


def test_the_progress_thread_completes_them(world):
    """No rank calls the library again, or MPI at all."""
    job = Job(world.Iallreduce, 2, 100_000)
    end = time.monotonic() + 60
    while not job.request._operation.done and time.monotonic() < end:
        time.sleep(0.001)
    job.check()
    job.request.Wait()


def mixed(world, n=4):
    """Our requests and MPI's own, shuffled; the check to make when all are complete."""
    jobs = [Job(world.Iallreduce, i) for i in range(n)]
    left, right = (RANK - 1) % SIZE, (RANK + 1) % SIZE
    got = np.zeros(n, int)
    theirs = [MPI.COMM_WORLD.Irecv(got[i : i + 1], left, i) for i in range(n)]
    theirs += [MPI.COMM_WORLD.Isend(np.array([100 * RANK + i]), right, i) for i in range(n)]
    requests = [job.request for job in jobs] + theirs
    order = np.random.permutation(len(requests))

    def check():
        for job in jobs:
            job.check()
        assert got.tolist() == [100 * left + i for i in range(n)]

    return [requests[i] for i in order], check


def test_waitall_testall(world):
    for _ in range(5):
        requests, check = mixed(world)
        MPI.Request.Waitall(requests)
        check()
        assert all(r == MPI.REQUEST_NULL for r in requests)
        requests, check = mixed(world)
        while not MPI.Request.Testall(requests):
            pass
        check()


def test_waitany_waitsome_testany_testsome(world):
    for _ in range(5):
        requests, check = mixed(world)
        seen = [MPI.Request.Waitany(requests) for _ in requests]
        assert sorted(seen) == list(range(len(requests)))
        check()
        assert MPI.Request.Waitany(requests) == MPI.UNDEFINED
        requests, check = mixed(world)
        seen = []
        while len(seen) < len(requests):
            seen += MPI.Request.Waitsome(requests)
        check()
        requests, check = mixed(world)
        seen = []
        while len(seen) < len(requests):
            index, found = MPI.Request.Testany(requests)
            seen += [index] * (found and index != MPI.UNDEFINED)
            seen += MPI.Request.Testsome(requests) or []
        check()


def test_cancel_is_an_error(world):
    job = Job(world.Iallreduce, 2)
    with pytest.raises(MPI.Exception):
        job.request.Cancel()
    job.request.Wait()
    job.check()


def test_persistent_many_times(world):
    for name in (None, *NAMES):
        a, b = np.zeros(50), np.zeros(50)
        plan = world.Allreduce_init(a, b, algorithm=name)
        for i in range(30):
            a[:] = RANK + i
            plan.Start()
            assert plan.Wait()
            assert (b == RANKS_SUM + SIZE * i).all()
        plan.Free()


def test_persistent_started_in_different_orders(world):
    plans = [Job(world.Allreduce_init, i) for i in range(12)]
    for turn in range(10):
        for job in plans:
            job.result[:] = RANK + turn
        for i in np.random.permutation(12):  # another order on every rank
            plans[i].request.Start()
        if turn % 2:
            MPI.Request.Waitall([job.request for job in plans])
        else:
            for i in np.random.permutation(12):
                plans[i].request.Wait()
        for job in plans:
            assert (job.result == RANKS_SUM + SIZE * turn).all()
    for job in plans:
        job.request.Free()


def test_persistent_started_as_soon_as_mpi_has_waited(world):
    """MPI's waits see the end of a request a moment before the library counts it as ended."""
    plans = [Job(world.Allreduce_init, i).request for i in range(3)]
    for _ in range(500):
        for plan in plans:
            plan.Start()
        MPI.Request.Waitall(plans)
    for plan in plans:
        plan.Free()


def test_a_start_waits_for_what_is_about_to_end(monkeypatch):
    """However long that takes: the progress thread may have lost its core, and the whole process its share."""
    clock = mock.Mock(spec=["sleep", "monotonic"], **{"monotonic.side_effect": itertools.count()})  # a second per look
    monkeypatch.setattr(nonblocking, "time", clock)
    operation = mock.Mock(spec=["done", "ending"])
    type(operation).ending = mock.PropertyMock(side_effect=[True] * 100 + [False])
    type(operation).done = mock.PropertyMock(side_effect=lambda: clock.sleep.call_count == 100)
    assert nonblocking._ends_now(operation)
    assert nonblocking._ends_now(mock.Mock(done=True, ending=False))
    assert not nonblocking._ends_now(mock.Mock(done=False, ending=False))  # under way


def test_persistent_life(world):
    plan = Job(world.Allreduce_init, 1000).request
    assert plan.Test()
    assert plan.Wait()  # not started: nothing to wait for
    plan.Start()
    plan.Wait()
    plan.Start()
    while not plan.Test():
        pass
    plan.Start()
    plan.Free()  # completes the run first
    with pytest.raises(ValueError, match="freed"):
        plan.Start()
    for _ in range(300):
        plan = world.Allreduce_init(MPI.IN_PLACE, np.zeros(3))
        plan.Start()
        plan.Wait()
        plan.Free()


def test_started_twice_is_refused(world):
    """The second start comes while the first cannot have ended: rank 0 has not begun."""
    plan = world.Allreduce_init(MPI.IN_PLACE, np.zeros(3))
    if RANK == 0:
        MPI.COMM_WORLD.Barrier()
        plan.Start()
    else:
        plan.Start()
        with pytest.raises(ValueError, match="under way already"):
            plan.Start()
        MPI.COMM_WORLD.Barrier()
    plan.Wait()
    plan.Free()


def test_user_defined_op_in_flight(world):
    """The progress thread and the waiting thread both call Python."""
    add = MPI.Op.Create(lambda a, b, datatype: np.frombuffer(b)[:].__iadd__(np.frombuffer(a)) is None, commute=True)
    vectors = [np.full(3000, float(RANK + i)) for i in range(10)]
    requests = [world.Iallreduce(MPI.IN_PLACE, v, add) for v in vectors]
    MPI.Request.Waitall(requests[::2])
    for request in requests[1::2]:
        request.Wait()
    for i, v in enumerate(vectors):
        assert (v == RANKS_SUM + SIZE * i).all()
    add.Free()


def test_thousands_in_flight(world):
    vectors = [np.full(3, RANK + i) for i in range(2000)]
    requests = [world.Iallreduce(MPI.IN_PLACE, v) for v in vectors]
    MPI.Request.Waitall(requests)
    for i, v in enumerate(vectors):
        assert (v == RANKS_SUM + SIZE * i).all()
    settle()
    assert world._context.plans._bytes <= 64 << 20
