"""Non-blocking and persistent all-reduce: many in flight, waited for in any order and by any of MPI's waits."""

import gc
import itertools
import sys
import time
from unittest import mock

import numpy as np
import pytest
from forms import ours, settle
from mpi4py import MPI

import collectives
from collectives.communicator import nonblocking
from collectives.core import _core
from collectives.system import heap

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
NAMES = ours("allreduce")
RANKS_SUM = SIZE * (SIZE - 1) // 2


class Job:
    """A vector, its all-reduce and the result that it must have."""

    def __init__(self, start, i, count=None, **options):
        self.count = 7 * i + 1 if count is None else count
        self.result = np.arange(self.count) * (RANK + 1) + i
        self.expected = np.arange(self.count) * (RANKS_SUM + SIZE) + SIZE * i
        self.request = start(MPI.IN_PLACE, self.result, **options)

    def check(self):
        np.testing.assert_array_equal(self.result, self.expected)


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


def test_buffers_live_as_long_as_the_request(world):
    a, b = np.zeros(1000), np.zeros(1000)
    before = sys.getrefcount(a), sys.getrefcount(b)
    request = world.Iallreduce(a, b)
    assert sys.getrefcount(a) > before[0]
    request.Wait()
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before
    MPI.Request.Waitall([world.Iallreduce(a, b) for _ in range(3)])
    settle()
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before
    plan = world.Allreduce_init(a, b)
    plan.Start()
    plan.Wait()
    plan.Free()
    del plan
    assert (sys.getrefcount(a), sys.getrefcount(b)) == before


def test_dropped_requests_and_arrays(world):
    """Nobody holds request or arrays: the collective still ends, in memory that stays until then."""
    for i in range(20):
        Job(world.Iallreduce, i, 5000)
    gc.collect()
    job = Job(world.Iallreduce, 4)
    job.request.Free()
    assert job.request == MPI.REQUEST_NULL
    settle()
    job.check()
    assert not _core.queued()
    job = Job(world.Iallreduce, 4)
    settle()
    job.request.Free()  # when it is complete already
    job.check()


def test_communicator_dropped_while_under_way():
    comm = collectives.Communicator(MPI.COMM_WORLD)
    jobs = [Job(comm.Iallreduce, i, 30_000) for i in range(5)]
    plan = Job(comm.Allreduce_init, 3)
    del comm
    gc.collect()
    other = collectives.Communicator(MPI.COMM_WORLD)  # frees what is dead
    plan.request.Start()
    for job in [*jobs, plan]:
        job.request.Wait()
        job.check()
    other.Free()


def test_free_completes_what_is_under_way():
    comm = collectives.Communicator(MPI.COMM_WORLD)
    jobs = [Job(comm.Iallreduce, i, 30_000) for i in range(5)]
    comm.Free()
    for job in jobs:
        job.check()
        job.request.Wait()


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


@pytest.mark.parametrize("persistent", [False, True])
def test_a_datatype_that_is_freed_while_a_users_op_needs_it(world, persistent):
    """Its handle goes to no other datatype before the end of the call."""
    pair, sizes, vector = MPI.DOUBLE.Create_contiguous(2).Commit(), set(), np.full(60, RANK + 1.0)

    def add(a, b, datatype):
        sizes.add(datatype.Get_size())
        np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b))

    op = MPI.Op.Create(add, commute=True)
    if not persistent and RANK == 0:
        MPI.COMM_WORLD.Barrier()  # the others have freed theirs before this rank begins
    request = (world.Allreduce_init if persistent else world.Iallreduce)(MPI.IN_PLACE, [vector, 30, pair], op)
    pair.Free()
    others = [MPI.DOUBLE.Create_contiguous(3).Commit() for _ in range(20)]
    if not persistent and RANK:
        MPI.COMM_WORLD.Barrier()
    if persistent:
        request.Start()
    request.Wait()
    assert (vector == RANKS_SUM + SIZE).all()
    assert sizes <= {16}
    for made in (*others, op, *([request] if persistent else [])):
        made.Free()


def test_thousands_in_flight(world):
    vectors = [np.full(3, RANK + i) for i in range(2000)]
    requests = [world.Iallreduce(MPI.IN_PLACE, v) for v in vectors]
    MPI.Request.Waitall(requests)
    for i, v in enumerate(vectors):
        assert (v == RANKS_SUM + SIZE * i).all()
    settle()
    assert world._context.plans._bytes <= 64 << 20


def test_memory_of_persistent_calls(world):
    """Each has flags and places to stage in of its own, which go to the next one when all ranks are done with them."""
    own, vector = heap.process_heap(), np.ones(5000)
    before = None
    for i in range(40):
        plans = [world.Allreduce_init(vector, np.empty(5000)) for _ in range(6)]
        for plan in plans:
            plan.Start()
        for k in np.random.permutation(6):
            plans[k].Wait()
            if k % 2:
                plans[k].Free()
            else:
                plans[k] = None  # collected
        del plan
        if i == 5:
            before = own.reserved
    assert own.reserved < before + (8 << 20)


def test_a_persistent_call_collected_while_under_way(world):
    """Its group goes to nobody else before it has ended."""
    for i in range(20):
        out = np.empty(3000)
        plan = world.Allreduce_init(np.full(3000, 1.0 + i), out)
        plan.Start()
        del plan
        other = world.Bcast_init(np.ones(10), i % SIZE)
        other.Start()
        other.Wait()
        world.Barrier()
        settle()
        assert (out == SIZE * (1 + i)).all()


@pytest.mark.parametrize("algorithm", ["mpi", "ring", None])
def test_a_freed_persistent_call_lets_go_of_its_buffers(world, algorithm):
    buffer = bytearray(np.ones(10).tobytes())
    request = world.Allreduce_init(MPI.IN_PLACE, [buffer, 10, MPI.DOUBLE], algorithm=algorithm)
    request.Start()
    request.Wait()
    request.Free()
    buffer.extend(b"x")
    assert np.frombuffer(buffer, count=10).tolist() == [SIZE] * 10
