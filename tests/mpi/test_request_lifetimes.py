"""What requests hold, and for how long: buffers, datatypes, staging memory, the communicator itself."""

import gc
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from forms import Job, settle
from mpi4py import MPI

import collectives
from collectives.core import _core
from collectives.system import heap

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
RANKS_SUM = SIZE * (SIZE - 1) // 2


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
    assert own.reserved < before + (24 << 20)  # a rank that is ahead by a round has 12 MiB more for a while


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


@pytest.mark.parametrize("free", ["Free", "free"])
@pytest.mark.parametrize("algorithm", ["mpi", "ring", None])
def test_a_freed_persistent_call_lets_go_of_its_buffers(world, algorithm, free):
    buffer = bytearray(np.ones(10).tobytes())
    request = world.Allreduce_init(MPI.IN_PLACE, [buffer, 10, MPI.DOUBLE], algorithm=algorithm)
    request.Start()
    request.Wait()
    of_a_watch = getattr(request, "_operation", None)  # a thread that looks at calls may have it for longer
    getattr(request, free)()
    buffer.extend(b"x")
    assert np.frombuffer(buffer, count=10).tolist() == [SIZE] * 10
    request.free()  # does nothing now
    if algorithm != "mpi":
        with pytest.raises(ValueError, match="freed"):
            request.Start()
    del of_a_watch


def soon(resize, *args, **kwargs):
    """``resize(...)`` as soon as nothing holds the memory: the main thread releases it a moment after MPI's wait."""
    end = time.monotonic() + 20
    while True:
        try:
            return resize(*args, **kwargs)
        except (BufferError, ValueError):
            assert time.monotonic() < end
            time.sleep(1e-3)


@pytest.mark.parametrize("wait", [lambda request: request.Wait(), lambda request: MPI.Request.Waitall([request])])
@pytest.mark.parametrize("algorithm", ["binomial", None])
def test_a_request_that_has_ended_lets_go_of_scattered_buffers(world, algorithm, wait):
    """Those that the library copies to and from memory of its own."""
    buffer, every_other = bytearray(np.full(20, float(RANK)).tobytes()), MPI.DOUBLE.Create_vector(10, 1, 2).Commit()
    request = world.Ibcast([buffer, 1, every_other], SIZE - 1, algorithm=algorithm)
    wait(request)
    soon(buffer.extend, b"x")
    assert np.frombuffer(buffer, count=20).tolist() == [SIZE - 1, RANK] * 10
    del request
    every_other.Free()


@pytest.mark.parametrize("algorithm", ["ring", None])
def test_arrays_that_mpi_has_waited_for_are_let_go(world, algorithm):
    """Without another non-blocking call, and however few requests there are."""
    array, dropped = np.full(10, RANK + 1.0), []
    MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, array, algorithm=algorithm)])
    world.Barrier()
    soon(array.resize, 16, refcheck=False)
    assert array.tolist() == [RANKS_SUM + SIZE] * 10 + [0] * 6
    for _ in range(8):
        array = np.ones(1000)
        dropped.append(weakref.ref(array))
        MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, array, algorithm=algorithm)])
    del array
    end = time.monotonic() + 20
    while any(array() is not None for array in dropped):
        assert time.monotonic() < end
        time.sleep(1e-3)


def test_arrays_let_go_by_calls_of_other_threads(world):
    """The main thread, which would release them, waits for the thread in a function of C."""
    dropped, most = [], []

    def work():
        for _ in range(12):
            array = np.ones(1000)
            dropped.append(weakref.ref(array))
            MPI.Request.Waitall([world.Iallreduce(MPI.IN_PLACE, array)])
            while _core.outstanding():
                time.sleep(1e-4)
            most.append(sum(array() is not None for array in dropped))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    assert max(most) <= 3


def test_a_reduction_by_mpi_lets_go_without_the_garbage_collector(world):
    a, b = np.full(100, RANK + 1.0), np.empty(100)
    gc.collect()
    gc.disable()
    try:
        before = sys.getrefcount(a), sys.getrefcount(b)
        MPI.Request.Waitall([world.Iallreduce(a, b, algorithm="mpi")])
        assert (sys.getrefcount(a), sys.getrefcount(b)) == before
        world.Iallreduce(a, b, algorithm="mpi").Wait()
        assert (sys.getrefcount(a), sys.getrefcount(b)) == before
    finally:
        gc.enable()
    assert (b == RANKS_SUM + SIZE).all()
