"""Lower-case methods: as mpi4py's, with large arrays beside the pickle stream; and grouped calls."""

import pickle
import threading

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments.buffers import AVG

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
PLAIN = MPI.COMM_WORLD


SCHEDULES = (
    "bcast=binomial,allgather=ring,allgatherv=ring,gatherv=linear,scatter=linear,scatterv=linear,alltoall=linear,"
    "alltoallv=pairwise"
)


@pytest.fixture(scope="module", params=["node", "schedules"])
def comm(request):
    """A communicator whose objects go through the node-local engine, and one as between nodes."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "schedules":
            patch.setenv("COLLECTIVES_ALGORITHM", SCHEDULES)
        made = collectives.Communicator(PLAIN)
    yield made
    made.Free()


def thing(rank, large=0):
    """An object of some depth; ``large``: arrays that do not go through the pickle stream."""
    arrays = [np.arange(100_001.0 + i) * rank for i in range(large * (rank % 3 + 1))]
    return {"rank": rank, "text": "x" * (50 * rank), "arrays": arrays, "odd": np.arange(70_001, dtype=np.int8)}


def same(a, b):
    assert a.keys() == b.keys()
    assert (a["rank"], a["text"], len(a["arrays"])) == (b["rank"], b["text"], len(b["arrays"]))
    for x, y in zip(a["arrays"], b["arrays"], strict=True):
        np.testing.assert_array_equal(x, y)
    return True


@pytest.mark.parametrize("large", [0, 1, 2])
def test_like_mpi4py(comm, large):
    mine, root = thing(RANK, large), SIZE - 1
    assert same(comm.bcast(mine, root), thing(root, large))
    gathered = comm.gather(mine, root)
    assert (gathered is None) == (root != RANK)
    for found in (gathered or [], comm.allgather(mine)):
        assert all(same(f, thing(r, large)) for r, f in enumerate(found))
    assert same(comm.scatter([thing(r, large) for r in range(SIZE)] if root == RANK else None, root), mine)
    for r, found in enumerate(comm.alltoall([thing(RANK + j, large) for j in range(SIZE)])):
        assert same(found, thing(r + RANK, large))


def test_small_and_odd_objects(comm):
    for obj in (None, 0, "", b"", (), "x" * 900, "x" * 1100, "x" * 100, [1.5] * 300, lambda: 0, np.zeros(0)):
        if callable(obj):
            with pytest.raises((pickle.PicklingError, AttributeError)):
                comm.allgather(obj)
            continue
        found = comm.bcast(obj if RANK == 0 else "other")
        assert np.array_equal(found, obj) if isinstance(obj, np.ndarray) else found == obj
        assert len(comm.allgather(obj)) == SIZE
    assert comm.scatter(None if RANK else range(SIZE)) == RANK
    assert comm.barrier() is None
    with pytest.raises(ValueError, match=f"expected {SIZE} objects"):
        comm.alltoall([1] * (SIZE + 1))
    assert comm.alltoall(None) == [None] * SIZE
    assert comm.scatter(None) is None


def test_large_arrays_do_not_go_through_the_stream(comm, monkeypatch):
    lengths, dumps = [], MPI.pickle.dumps_oob

    def noting(obj):
        data, buffers = dumps(obj)
        lengths.append((len(data), [b.nbytes for b in buffers]))
        return data, buffers

    array = np.arange(1_000_000.0)
    spy = type("Spy", (), {"dumps_oob": staticmethod(noting), "loads_oob": MPI.pickle.loads_oob,
                           "loads": MPI.pickle.loads})  # fmt: skip
    monkeypatch.setattr(MPI, "pickle", spy)
    found = comm.allgather(array)
    assert lengths[0][0] < 1000
    assert lengths[0][1] == [8_000_000]
    assert all(f.flags.aligned and f.flags.writeable for f in found)


def test_reductions_fold_in_rank_order(comm):
    text = "".join(chr(97 + r) for r in range(SIZE))
    order = lambda a, b: a + b  # noqa: E731
    assert comm.allreduce(text[RANK], order) == text
    assert comm.reduce(text[RANK], order, SIZE - 1) == (text if RANK == SIZE - 1 else None)
    assert comm.scan(text[RANK], order) == text[: RANK + 1]
    assert comm.exscan(text[RANK], order) == (text[:RANK] or None)
    for name in ("allreduce", "scan", "exscan", "reduce"):
        for op in (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD):
            assert getattr(comm, name)(RANK + 1, op) == getattr(PLAIN, name)(RANK + 1, op)
        pair = ([3, 1, 2][RANK % 3], RANK)
        assert getattr(comm, name)(pair, MPI.MINLOC) == getattr(PLAIN, name)(pair, MPI.MINLOC)
    total = comm.allreduce(np.full(200_000, float(RANK)))
    assert (total == SIZE * (SIZE - 1) / 2).all()


def test_frames_hold_streams_up_to_a_length(comm):
    """Streams of lengths on both sides of what a frame holds, on some ranks or for some ranks only."""
    for length in (0, 450, 495, 496, 497, 512, 5000):
        mine = "x" * length
        for one in range(SIZE):
            own = mine if one == RANK else RANK
            assert comm.bcast(own, one) == mine
            expected = [mine if r == one else r for r in range(SIZE)]
            assert comm.allgather(own) == expected
            assert comm.gather(own, SIZE - 1) == (expected if RANK == SIZE - 1 else None)
            assert comm.scatter(expected if RANK == 0 else None) == own
            assert comm.alltoall(expected) == [own] * SIZE


@pytest.mark.parametrize("length", [400, 512, 5000])
def test_scans_leave_out_the_ranks_behind(comm, length):
    """Streams that a frame holds, and longer ones, on all ranks or on one; then with arrays beside the streams."""
    texts = [chr(97 + rank) * length for rank in range(SIZE)]
    for one in (None, *range(SIZE)):
        given = [text if one in (None, rank) else "-" for rank, text in enumerate(texts)]
        assert comm.scan(given[RANK]) == "".join(given[: RANK + 1])
        assert comm.exscan(given[RANK]) == ("".join(given[:RANK]) or None)
    pairs = [([text], [np.full(2000, float(rank))]) for rank, text in enumerate(texts)]
    add = lambda a, b: (a[0] + b[0], a[1] + b[1])  # noqa: E731
    for found, end in ((comm.scan(pairs[RANK], add), RANK + 1), (comm.exscan(pairs[RANK], add), RANK)):
        assert (found or [[]])[0] == texts[:end]
        assert [array[0] for array in (found or [[], []])[1]] == list(range(end))


def test_small_objects_that_hold_large_ones(comm):
    large = np.arange(50_000.0) + RANK
    deep = [[[[large]]], {"a": (large[:3], large)}, np.array([large, None], object)]
    for found in (comm.allgather(deep)[RANK], comm.alltoall([deep] * SIZE)[RANK]):
        np.testing.assert_array_equal(found[0][0][0][0], large)
        np.testing.assert_array_equal(found[1]["a"][1], large)
        np.testing.assert_array_equal(found[2][0], large)


def test_objects_are_copies(comm):
    mine = [RANK]
    comm.allgather(mine)[RANK].append(1)
    comm.allreduce(mine, lambda a, b: a.extend(b) or a).append(1)
    comm.alltoall([mine] * SIZE)[RANK].append(1)
    assert mine == [RANK]


def test_a_broadcast_gives_copies_to_its_root_too(comm):
    mine = {"list": [RANK], "large": np.full(100_000, float(RANK)), "small": np.full(3, RANK)}
    found = comm.bcast(mine, SIZE - 1)
    found["list"].append(1)
    found["large"][:] = found["small"][:] = -1
    assert mine["list"] == [RANK]
    assert (mine["large"] == RANK).all()
    assert (mine["small"] == RANK).all()
    text = "x" * 1000
    assert (comm.bcast(text) is text) == (RANK == 0)


def owner(memory):
    """What has the memory that an array is a view of."""
    while True:
        base = memory.obj if isinstance(memory, memoryview) else getattr(memory, "base", None)
        if base is None:
            return memory
        memory = base


def test_each_array_that_has_come_has_its_own_memory(comm):
    """So that one that is kept does not keep the others; also beside ranks that have sent nothing large."""
    for lengths in ([2000 + rank for rank in range(SIZE)], [3000 * (rank % 2) for rank in range(SIZE)]):
        mine = np.full(lengths[RANK], float(RANK))
        every = [np.full(lengths[RANK], float(RANK)) for _ in range(SIZE)]
        for found in (comm.allgather(mine), comm.gather(mine) or [], comm.alltoall(every)):
            for rank, array in enumerate(found):
                assert array.tolist() == [rank] * lengths[rank]
                assert not lengths[rank] or memoryview(owner(array)).nbytes == array.nbytes


class Nested:
    """Unpickling it is collective."""

    def __init__(self, comm):
        self.found = comm.allgather("y" * 300)

    def __reduce__(self):
        return Nested, (Handle(),)


class Handle:
    """The communicator of the test, whoever unpickles it."""

    current = None

    def __reduce__(self):
        return getattr, (Handle, "current")


def test_unpickling_may_be_collective(comm):
    Handle.current = comm
    nested = Nested(comm)
    assert [n.found for n in comm.allgather(nested)] == [["y" * 300] * SIZE] * SIZE


def test_the_programs_serializer(comm, monkeypatch):
    mine = MPI.Pickle(lambda obj: b"+" + pickle.dumps(obj), lambda data: pickle.loads(bytes(data)[1:]))
    monkeypatch.setattr(MPI, "pickle", mine)
    for obj in (1, "x" * 1000, np.arange(3), np.arange(100_000)):
        assert all(np.array_equal(found, obj) for found in comm.allgather(obj))
        assert np.array_equal(comm.bcast(obj), obj)


def test_threads_with_a_communicator_each(comm):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.fail("mpi4py asks for THREAD_MULTIPLE by default")
    comms, wrong = [collectives.Communicator(comm) for _ in range(2)], []

    def use(i):
        for k in range(50):
            found = comms[i].allgather((i, k, RANK, "x" * (k * 20)))
            if found != [(i, k, r, "x" * (k * 20)) for r in range(SIZE)] or comms[i].bcast((i, k)) != (i, k):
                wrong.append((i, k))

    threads = [threading.Thread(target=use, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for each in comms:
        each.Free()


def test_freed_communicators_say_so(comm):
    freed = comm.Dup()
    assert freed.allgather(RANK) == list(range(SIZE))
    freed.Free()
    with pytest.raises(MPI.Exception):
        freed.bcast(1)


def test_wrong_roots(world):
    for call in (world.bcast, world.gather, world.scatter, lambda o, r: world.reduce(o, MPI.SUM, r)):
        for root in (-1, SIZE):
            with pytest.raises(MPI.Exception) as caught:
                call([1] * SIZE, root)
            assert caught.value.Get_error_class() == MPI.ERR_ROOT
            assert isinstance(caught.value, ValueError)


# Grouped calls


def test_grouped_calls_are_fused(world, monkeypatch):
    ran = []
    run_draft = type(world)._run_draft

    def noting(self, draft, options):
        ran.append((draft.collective.name, draft.nbytes))
        return run_draft(self, draft, options)

    monkeypatch.setattr(type(world), "_run_draft", noting)
    sums = [np.full(i, RANK + i, "f4") for i in range(1, 11)]
    doubles = [np.full(i, float(RANK)) for i in range(5)]
    roots = [np.full(3, RANK) for _ in range(4)]
    means, targets = [np.full(2, float(RANK)) for _ in range(3)], [np.zeros(2) for _ in range(3)]
    upto = [np.full(2, RANK) for _ in range(2)]
    with world.group():
        for i in range(10):
            world.Allreduce(MPI.IN_PLACE, sums[i])
            if i < 5:
                world.Allreduce(MPI.IN_PLACE, doubles[i], MPI.MAX)
            if i < 4:
                world.Bcast(roots[i], i % 2 if SIZE > 1 else 0)
            if i < 3:
                world.Allreduce(means[i], targets[i], AVG)
            if i < 2:
                world.Exscan(MPI.IN_PLACE, upto[i])
    total = SIZE * (SIZE - 1) // 2
    for i in range(10):
        assert (sums[i] == total + SIZE * (i + 1)).all()
    assert all((d == SIZE - 1).all() for d in doubles)
    assert all((r == (i % 2 if SIZE > 1 else 0)).all() for i, r in enumerate(roots))
    assert all((t == total / SIZE).all() for t in targets)
    assert all((u == (sum(range(RANK)) if RANK else 0)).all() for u in upto)
    assert sorted(ran)[:2] == [("allreduce", 48), ("allreduce", 80)]
    assert len(ran) == 4 + min(SIZE, 2)
    assert world.last.algorithm != "mpi"
    total = np.array([1])
    world.Allreduce(MPI.IN_PLACE, total)  # the fast path is open again
    assert total == SIZE


def test_what_is_not_fused_runs_at_the_end(world):
    large, small, long = np.full(100_000, float(RANK)), np.full(3, RANK), np.full(3, RANK, np.longdouble)
    with world.group():
        world.Allreduce(MPI.IN_PLACE, large)
        world.Allreduce(MPI.IN_PLACE, small)
        world.Allreduce(MPI.IN_PLACE, long)
        assert (small == RANK).all()
    assert all((a == SIZE * (SIZE - 1) // 2).all() for a in (large, small, long))


def test_ranks_agree_on_what_is_fused(world):
    """Timeouts, the types of bytes that are only moved, and handles of ops are each rank's own."""
    a, b, c, d = (np.full(4, float(RANK)) for _ in range(4))
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    larger = [MPI.Op.Create(lambda x, y, kind: np.maximum(_f8(x), _f8(y), out=_f8(y)), commute=True) for _ in range(2)]
    e, f = np.full(4, float(RANK)), np.full(4, float(RANK))
    with world.group():
        world.Allreduce(MPI.IN_PLACE, a, timeout=20)
        world.Allreduce(MPI.IN_PLACE, b, timeout=20 if RANK else 30)
        world.Bcast([c, 2, pair] if RANK else c)
        world.Bcast(d)
        world.Allreduce(MPI.IN_PLACE, e, larger[0])
        world.Allreduce(MPI.IN_PLACE, f, larger[1 if RANK else 0])
    assert all((x == SIZE * (SIZE - 1) // 2).all() for x in (a, b))
    assert all((x == 0).all() for x in (c, d))
    assert all((x == SIZE - 1).all() for x in (e, f))
    pair.Free()
    for op in larger:
        op.Free()


def _f8(memory):
    return np.frombuffer(memory, "f8")


def test_wrong_use_of_groups(world):
    a, b = np.zeros(4), np.zeros(4)
    for use, message in (
        (lambda: world.Barrier(), "Barrier cannot be grouped"),
        (lambda: world.Allgather(a, np.zeros(4 * SIZE)), "Allgather cannot be grouped"),
        (lambda: world.Iallreduce(a, b), "only blocking calls"),
        (lambda: world.Allreduce_init(a, b), "only blocking calls"),
        (lambda: world.allreduce(1), "a call with objects within a group"),
        (lambda: [world.Allreduce(a, b), world.Allreduce(b, np.zeros(4))], "valid only"),
        (lambda: [world.Bcast(a), world.Allreduce(a, b)], "valid only"),  # on the root, too
        (lambda: world.group().__enter__(), "open group already"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message), world.group():
            use()
    assert world.allreduce(1) == SIZE
    with world.group():
        pass


def test_group_is_still_mpi4pys(world):
    group = world.group
    assert isinstance(group, MPI.Group)
    assert (group.size, group.rank) == (SIZE, RANK)
    assert MPI.Group.Compare(group, PLAIN.group) == MPI.IDENT
    group.Free()
