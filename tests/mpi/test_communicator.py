"""Communicators: made from each other, compared, freed, collected, beside the program's own messages and threads."""

import gc
import multiprocessing
import os
import pickle
import threading
import time

import numpy as np
import pytest
from forms import ours
from mpi4py import MPI

import collectives
from collectives import Communicator
from collectives.communicator import Cartcomm, Distgraphcomm, Graphcomm
from collectives.system import heap, lifetime, mpi_library

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


def total(comm):
    """Sum of 1 over the ranks by this library's all-reduce."""
    a = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, a)
    assert comm.last.algorithm != "mpi"
    assert (a == a[0]).all()
    return int(a[0])


def test_the_timeout_is_that_of_the_communicator_it_was_made_from(world):
    world.timeout = 77
    made = [world.Dup(), world.Split(RANK % 2), Communicator(world), Communicator(WORLD)]
    assert [comm.timeout for comm in made] == [77, 77, 77, None]
    for comm in made:
        comm.Free()
    world.timeout = None


def test_is_mpi4pys(world):
    assert isinstance(world, MPI.Intracomm)
    assert (world.rank, world.size) == (RANK, SIZE)
    assert world != WORLD
    assert world == MPI.Intracomm(world)
    assert MPI.Comm.Compare(world, WORLD) == MPI.CONGRUENT
    with pytest.raises(TypeError):
        hash(world)  # as mpi4py's
    with pytest.raises(ValueError, match="cannot serialize"):
        pickle.dumps(world)
    assert total(world) == SIZE
    assert world.allreduce(1) == SIZE
    assert world.bcast({"a": RANK}) == {"a": 0}
    assert world.Get_name() == MPI.Intracomm(world).Get_name()


def test_null():
    for null in (Communicator(), Communicator(MPI.COMM_NULL), Communicator(None)):
        assert null == MPI.COMM_NULL
        assert not null
        with pytest.raises(MPI.Exception):
            null.Allreduce(np.zeros(1), np.zeros(1))
    for wrong in (3, "world", MPI.GROUP_EMPTY):
        with pytest.raises(TypeError, match="expected an mpi4py.MPI.Intracomm"):
            Communicator(wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda c: c.Dup(), lambda c: c.Clone(), lambda c: c.Dup(MPI.INFO_NULL), lambda c: Communicator(c),
        lambda c: c.Dup_with_info(MPI.INFO_NULL), lambda c: c.Split(0, -RANK), lambda c: c.Create(c.group),
        lambda c: c.Split_type(MPI.COMM_TYPE_SHARED), lambda c: c.Create_group(c.group, 3),
    ],
)  # fmt: skip
def test_made_from_another_keeps_the_type(world, make):
    made = make(world)
    assert type(made) is Communicator
    assert made != world
    assert total(made) == SIZE
    again = make(made)
    assert total(again) == SIZE
    again.Free()
    made.Free()
    assert made == MPI.COMM_NULL


def test_parts(world):
    half = world.Split(RANK % 2, RANK)
    assert total(half) == half.size == (SIZE + 1 - RANK % 2) // 2
    none = world.Split(MPI.UNDEFINED if RANK else 0)
    assert type(none) is Communicator
    assert (none == MPI.COMM_NULL) == (RANK > 0)
    if RANK == 0:
        assert total(none) == 1
        none.Free()
    first = world.group.Incl(range((SIZE + 1) // 2))
    made = world.Create(first)
    if RANK < (SIZE + 1) // 2:
        assert total(made) == (SIZE + 1) // 2
        made.Free()
        made = world.Create_group(first)
        assert total(made) == (SIZE + 1) // 2
        made.Free()
    else:
        assert made == MPI.COMM_NULL
    half.Free()


def test_topologies(world):
    cart = world.Create_cart([SIZE], periods=[True])
    assert type(cart) is Cartcomm
    assert isinstance(cart, MPI.Cartcomm)
    assert cart.Shift(0, 1) == ((RANK - 1) % SIZE, (RANK + 1) % SIZE)
    for made in (cart, cart.Sub([True]), cart.Dup(), cart.Clone()):
        assert type(made) is Cartcomm
        assert made.dim == 1
        assert total(made) == SIZE
        made.Free()
    row = world.Create_cart([1, SIZE]).Sub([True, False])
    assert total(row) == 1
    row.Free()
    graph = world.Create_graph(
        [2 * (i + 1) for i in range(SIZE)], [x % SIZE for i in range(SIZE) for x in (i - 1, i + 1)]
    )
    assert type(graph) is Graphcomm
    assert graph.Get_neighbors(RANK) == [(RANK - 1) % SIZE, (RANK + 1) % SIZE]
    adjacent = world.Create_dist_graph_adjacent([(RANK - 1) % SIZE], [(RANK + 1) % SIZE])
    general = world.Create_dist_graph([RANK], [1], [(RANK + 1) % SIZE])
    for made in (graph, graph.Dup()):
        assert total(made) == SIZE
        made.Free()
    for made in (adjacent, general, general.Dup()):
        assert type(made) is Distgraphcomm
        assert made.Get_dist_neighbors()[1] == [(RANK + 1) % SIZE]
        assert total(made) == SIZE
        made.Free()


@pytest.mark.skipif(SIZE == 1, reason="an intercommunicator has two sides")
def test_intercommunicators(world):
    side = world.Split(RANK % 2)
    between = side.Create_intercomm(0, WORLD, 1 - RANK % 2, 5)
    with pytest.raises(TypeError, match="Intracomm"):
        Communicator(between)
    merged = Communicator(between.Merge(RANK % 2))
    assert total(merged) == SIZE
    merged.Free()
    between.Free()
    side.Free()


def test_subclasses():
    class Mine(Communicator):
        """A user's own."""

    mine = Mine(WORLD)
    kept, plain = [mine.Dup(), mine.Clone()], [mine.Split(), mine.Create(mine.group)]  # as with mpi4py
    assert {type(made) for made in kept} == {Mine}
    assert {type(made) for made in plain} == {Communicator}
    for made in kept + plain:
        assert total(made) == SIZE
        made.Free()
    mine.Free()


def test_use_after_free():
    comm = Communicator(WORLD)
    plan = comm.Allreduce_init(MPI.IN_PLACE, np.zeros(2))
    comm.Free()
    for use in (
        lambda: comm.Allreduce(MPI.IN_PLACE, np.zeros(2)), lambda: comm.Iallreduce(MPI.IN_PLACE, np.zeros(2)),
        comm.Barrier, plan.Start, comm.Free, comm.Dup, lambda: comm.explain("allreduce", 8),
    ):  # fmt: skip
        with pytest.raises(MPI.Exception):
            use()


def test_the_programs_messages_are_its_own(world):
    """ANY_SOURCE and ANY_TAG receives posted before our collectives get only what the program sends."""
    got = [np.zeros(1, int) for _ in range(4)]
    requests = [world.Irecv(g, MPI.ANY_SOURCE, MPI.ANY_TAG) for g in got]
    a = np.arange(20_000.0)
    for name in (*ours("allreduce"), "mpi"):
        world.Allreduce(MPI.IN_PLACE, a, MPI.MAX, algorithm=name)
        world.Iallreduce(MPI.IN_PLACE, a, MPI.MAX, algorithm=name).Wait()
        world.Barrier()
    assert not world.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
    assert not MPI.Request.Testany(requests)[1]
    WORLD.Barrier()  # nobody sends before all have looked
    for i in range(4):
        world.Send(np.array([10 * RANK + i]), (RANK + 1) % SIZE, i)
    MPI.Request.Waitall(requests)
    assert sorted(int(g[0]) for g in got) == [10 * ((RANK - 1) % SIZE) + i for i in range(4)]
    WORLD.Barrier()  # nor sends more: a receive from anybody would take it


def test_a_send_posted_before_our_collective_arrives_meanwhile(world):
    """MPI keeps moving while we wait: the receiver joins the collective only when the long message is there."""
    long = np.full(1 << 20, RANK, np.int32)
    if SIZE > 1 and RANK == 0:
        requests = [world.Isend(long, r, 9) for r in range(1, SIZE)]
        world.Barrier()
        MPI.Request.Waitall(requests)
    else:
        if SIZE > 1:
            world.Recv(long, 0, 9)
            assert (long == 0).all()
        world.Barrier()


def test_thousands_of_communicators():
    """More than MPICH has contexts for, were they not freed; Open MPI has 65536."""
    number = 3000 if SIZE <= 3 and mpi_library.abi() != "openmpi" else 300
    for i in range(number):
        comm = Communicator(WORLD)
        if i % 500 == 0:
            assert total(comm) == SIZE
        comm.Free()
    assert not lifetime.dead()


def test_communicators_that_are_only_collected():
    """MPI's own stays, for another handle to it may live; what the library had for it does not."""
    handles = [MPI.Intracomm(Communicator(WORLD)) for _ in range(300)]
    assert len(lifetime.dead()) < 5
    for handle in handles:
        assert handle.Get_group().size == SIZE
        handle.Free()


def test_collected_on_different_ranks_at_different_times(world):
    for i in range(40):
        comm = world.Dup()
        comm.me = comm  # only a collector frees it
        if i % (RANK + 2) == 0:
            gc.collect()
    del comm
    gc.collect()
    world.Dup().Free()  # all are dead everywhere now
    assert not lifetime.dead()


@pytest.mark.parametrize("count", [10, 1000, 300_000])
def test_freed_where_the_others_are_inside_a_call_still(world, count):
    """The root of a broadcast leaves it before the others have come; what they read of it stays until they have."""
    for i in range(6):
        comm = world.Dup()
        vector = np.full(count, float(i)) if RANK == 0 else np.zeros(count)
        if RANK:
            time.sleep(0.003 * RANK)
        comm.Bcast(vector)
        if i % 2:
            comm.Free()
        del comm
        if RANK == 0:
            vector[:] = -1
            heap.empty(1 << 20, np.uint8)[:] = 255
        else:
            assert (vector == i).all()


def test_collected_parts(world):
    for _ in range(30):
        half = world.Split(RANK % 2)
        quarter = half.Dup()
        del half, quarter
    gc.collect()
    world.Dup().Free()
    assert not lifetime.dead()


def test_collector_in_the_middle_of_everything(world):
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(30):
            comm = world.Dup()
            comm.me = comm
            world.Iallreduce(MPI.IN_PLACE, np.zeros(10))
            assert total(comm) == SIZE
    finally:
        gc.set_threshold(*threshold)


def test_forked_children_do_nothing(world):
    request = world.Iallreduce(MPI.IN_PLACE, np.ones(50_000))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gc.collect()
            world.Allreduce(MPI.IN_PLACE, np.zeros(1))
        except collectives.CollectiveError as e:
            code = 0 if "forked" in str(e) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    request.Wait()
    assert total(world) == SIZE


def test_multiprocessing(world):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(abs, [-1, -2, -3]) == [1, 2, 3]
    assert total(world) == SIZE


@pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="needs MPI.THREAD_MULTIPLE")
def test_threads_with_a_communicator_each(world):
    comms = [world.Dup() for _ in range(3)]
    failures = []

    def work(comm, seed):
        try:
            for i in range(40):
                a = np.full(100 + i, RANK + seed)
                request = comm.Iallreduce(MPI.IN_PLACE, a)
                assert total(comm) == SIZE
                if i % 2:
                    request.Wait()
                else:
                    MPI.Request.Waitall([request])
                assert (a == SIZE * (SIZE - 1) // 2 + SIZE * seed).all()
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(comm, seed)) for seed, comm in enumerate(comms)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    for comm in comms:
        comm.Free()


def test_explain_and_last(world):
    assert world.explain("allreduce", 8) == "shm: all ranks share a node"
    with pytest.raises(ValueError, match="unknown collective 'allreduces'; known: .*allreduce"):
        world.explain("allreduces", 8)
    fresh = Communicator(WORLD)
    assert fresh.last is None
    fresh.Allreduce(np.zeros(5), np.zeros(5), algorithm="ring")
    assert (fresh.last.collective, fresh.last.algorithm, fresh.last.nbytes) == ("allreduce", "ring", 40)
    assert 0 < fresh.last.seconds < 60
    fresh.Allreduce(np.zeros(6), np.zeros(6))
    assert (fresh.last.collective, fresh.last.algorithm, fresh.last.nbytes) == ("allreduce", "shm", 48)
    assert 0 < fresh.last.seconds < 60
    fresh.Free()


def test_rank_0s_settings_hold_for_all(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "ring" if RANK == 0 else "nonsense")
    comm = Communicator(WORLD)
    assert total(comm) == SIZE
    assert comm.last.algorithm == "ring"
    assert "COLLECTIVES_ALGORITHM" in comm.explain("allreduce", 8)
    comm.Free()
    for name, value in (
        ("COLLECTIVES_ALGORITHM", "rings"),
        ("COLLECTIVES_TIMEOUT", "soon"),
        ("COLLECTIVES_TIMEOUT", "0"),
    ):
        monkeypatch.delenv("COLLECTIVES_ALGORITHM", raising=False)
        monkeypatch.setenv(name, value if RANK == 0 else "")
        with pytest.raises(ValueError, match=f"{name}='{value}'"):
            Communicator(WORLD)
        monkeypatch.delenv(name)


def test_a_freed_communicator_leaves_no_memory(world):
    """Not even until Python's garbage collector runs, which may be long, and each one stages on 2 MiB."""
    x = np.ones(50_000)
    gc.collect()
    gc.disable()
    try:
        reserved = []
        for _ in range(4):
            duplicate = world.Dup()
            duplicate.Allreduce(MPI.IN_PLACE, x)
            duplicate.Free()
            reserved.append(heap.process_heap().reserved)
    finally:
        gc.enable()
    assert len(set(reserved[1:])) == 1, reserved
