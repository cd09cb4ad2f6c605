"""The fast path, and calls like earlier ones: which calls take it, and that they do what others do, errors included."""

import array
import itertools
import threading
import weakref
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

from collectives import Communicator
from collectives.arguments.calls import COLLECTIVES, EXCHANGES
from collectives.communicator.nonblocking import Nonblocking

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
EACH = 3
COUNTS = ([EACH] * SIZE, [EACH * i for i in range(SIZE)])


@pytest.fixture
def slow(monkeypatch):
    """Names of the calls that take the slow path, blocking and non-blocking."""
    seen = []

    def noted(way):
        def noting(self, *args, **kwargs):
            seen.extend(arg.name for arg in args if arg in (COLLECTIVES | EXCHANGES).values())
            return way(self, *args, **kwargs)

        return noting

    for name in ("_run_now", "_start"):
        monkeypatch.setattr(Nonblocking, name, noted(getattr(Nonblocking, name)))
    return seen


def specs(memory, datatype, count):
    """Ways to say the same buffer."""
    return [memory, [memory, datatype], (memory, count), [memory, count, datatype]]


def memories(values):
    return [np.array(values, float), array.array("d", values), memoryview(array.array("d", values))]


def forms(world, name):
    """The blocking, non-blocking and persistent method."""

    def starting(*arguments):
        getattr(world, "I" + name.lower())(*arguments).Wait()

    def lasting(*arguments):
        request = getattr(world, name + "_init")(*arguments)
        for _ in range(2):
            request.Start()
            request.Wait()
        request.Free()

    return [getattr(world, name), starting, lasting]


def test_buffers_of_all_forms(world, slow):
    """Arrays and Python's own buffers, with or without count and datatype, take the fast path."""
    for spec in range(4):
        for kind in range(3):
            for call in forms(world, "Allreduce"):
                send, receive = memories([1.0 + RANK] * EACH)[kind], memories([0.0] * EACH)[kind]
                call(specs(send, MPI.DOUBLE, EACH)[spec], specs(receive, MPI.DOUBLE, EACH)[spec])
                assert list(receive) == [SIZE * (SIZE + 1) / 2] * EACH
            for call in forms(world, "Allgather"):
                send, receive = memories([RANK] * EACH)[kind], memories([-1.0] * EACH * SIZE)[kind]
                call(specs(send, MPI.DOUBLE, EACH)[spec], specs(receive, MPI.DOUBLE, EACH)[spec])
                assert list(receive) == [i // EACH for i in range(EACH * SIZE)]
            for call in forms(world, "Bcast"):
                buffer = memories([RANK] * EACH)[kind]
                call(specs(buffer, MPI.DOUBLE, EACH)[spec], SIZE - 1)
                assert list(buffer) == [SIZE - 1] * EACH
    assert slow == []


def test_unequal_blocks_of_all_forms(world, slow):
    for kind in range(3):
        for block in ([COUNTS], [COUNTS, MPI.DOUBLE], [COUNTS[0]], [*COUNTS, MPI.DOUBLE]):
            for call in forms(world, "Allgatherv"):
                send, receive = memories([RANK] * EACH)[kind], memories([-1.0] * EACH * SIZE)[kind]
                call([send, EACH, MPI.DOUBLE], [receive, *block])
                assert list(receive) == [i // EACH for i in range(EACH * SIZE)]
    assert slow == []


@pytest.mark.parametrize("way", [{}, {"algorithm": "linear"}], ids=str)
def test_neighbours_of_all_grids(world, slow, way):
    """Also neighbours that are one rank: what goes to it, or comes from it, is packed where it is not side by side."""
    for dims in ([SIZE], [SIZE, 1], [1, SIZE, 1]):
        comm = world.Create_cart(dims, [True] * len(dims))
        sources = [rank for axis in range(len(dims)) for rank in comm.Shift(axis, 1)]
        numbers, gathered = np.arange(2.0 * len(dims)), np.repeat(sources, 3)
        for turn in range(3):
            block, blocks = np.full(3, float(RANK)), np.full(3 * len(sources), -1.0)
            comm.Neighbor_allgather(block, blocks, **way)
            assert blocks.tolist() == gathered.tolist()
            send, receive = np.array([100.0 * RANK + i for i in numbers]), np.full(len(numbers), -1.0)
            comm.Neighbor_alltoall(send, receive, **way)
            assert receive.tolist() == [100 * rank + (i ^ 1) for i, rank in enumerate(sources)]
            one, places = [1] * len(numbers), numbers[::-1].astype(int).tolist()
            comm.Neighbor_alltoallv([send, (one, places), MPI.DOUBLE], [receive, (one, places), MPI.DOUBLE], **way)
            expected = [100 * rank + places[i ^ 1] for i, rank in enumerate(sources)]
            assert receive[places].tolist() == expected
            if turn < 2:
                slow.clear()  # the first call finds the neighbours, and a schedule's next one leaves its plan
        assert slow == []
        assert comm.last.algorithm == way.get("algorithm", "shm")
        comm.Free()


@pytest.mark.parametrize("way", [{}, {"algorithm": "linear"}], ids=str)
def test_a_halo_exchange_within_one_array(world, slow, way):
    """What is sent lies between what is received."""
    comm = world.Create_cart([SIZE], [False])
    field = np.zeros((6, 4))
    below, above = comm.Shift(0, 1)
    sent, received = ([4, 4], [4, 16]), ([4, 4], [0, 20])
    for turn in range(4):
        field[1:-1], field[0], field[-1] = RANK + turn, -1, -1
        comm.Neighbor_alltoallv([field, sent, MPI.DOUBLE], [field, received, MPI.DOUBLE], **way)
        assert (field[0] == (-1 if below < 0 else below + turn)).all()
        assert (field[-1] == (-1 if above < 0 else above + turn)).all()
        assert (field[1:-1] == RANK + turn).all()
        if turn < 2:
            slow.clear()
    assert slow == []
    comm.Free()


def test_calls_like_the_last_one_but_for_one_thing(world, monkeypatch):
    """Of several calls without options in turn, each is served by the plan of its own."""
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "allreduce=ring,bcast=binomial,reduce=binomial")
    comm = Communicator(MPI.COMM_WORLD)
    for _ in range(3):
        for n, kind, op, total in itertools.product(
            (2, 3), (np.float32, np.int32, np.float64), (MPI.SUM, MPI.MAX), (False, True)
        ):
            x, y = np.full(n, RANK, kind), np.full(n, RANK, kind)
            comm.Allreduce(MPI.IN_PLACE if total else x, y, op)
            assert (y == (SIZE * (SIZE - 1) // 2 if op == MPI.SUM else SIZE - 1)).all()
            assert comm.last.algorithm == "ring"
            for root in (0, SIZE - 1):
                y[:] = RANK
                comm.Bcast(y, root)
                assert (y == root).all()
                comm.Reduce(x, y, op, root)
                assert (y == ((SIZE * (SIZE - 1) // 2 if op == MPI.SUM else SIZE - 1) if RANK == root else root)).all()
    comm.Free()


def test_a_part_of_a_buffer(world, slow):
    """A count shorter than the buffer leaves the rest as it is."""
    for call in forms(world, "Allreduce"):
        receive = np.full(5, -1.0)
        call([np.ones(9), 2, MPI.DOUBLE], [receive, 2, MPI.DOUBLE])
        assert receive.tolist() == [SIZE, SIZE, -1, -1, -1]
    assert slow == []


@pytest.mark.parametrize(
    ("send", "receive", "kind", "message"),
    [
        ([np.ones(2), 3, MPI.DOUBLE], [np.ones(3), 3, MPI.DOUBLE], ValueError, "sendbuf: 3 elements from 0 on"),
        ([np.ones(3), MPI.DOUBLE], [np.ones(4), MPI.DOUBLE], ValueError, "sendbuf has 3 elements, recvbuf 4"),
        ([np.ones(3), MPI.DOUBLE], [np.ones(3), MPI.LONG], TypeError, "sendbuf is of MPI_DOUBLE, recvbuf of MPI_LONG"),
        ([np.ones(3), -1, MPI.DOUBLE], [np.ones(3), MPI.DOUBLE], ValueError, "sendbuf: -1 elements"),
        (array.array("d", [1.0]), bytes(8), ValueError, "recvbuf: the buffer is read-only"),
        (np.ones(3), np.ones((3, 2))[:, 0], ValueError, "recvbuf: the array is strided"),
        (["x", MPI.DOUBLE], [np.ones(3), MPI.DOUBLE], TypeError, "sendbuf: expected a buffer, not str"),
    ],
)
def test_what_is_wrong_is_said_by_the_slow_path(world, send, receive, kind, message):
    for call in forms(world, "Allreduce"):
        with pytest.raises(kind, match=message):
            call(send, receive)


def test_results_of_more_than_the_buffer_has_are_refused(world):
    with pytest.raises(ValueError, match="recvbuf: .* elements from 0 on in a buffer of"):
        world.Allgather([np.ones(2), MPI.DOUBLE], [np.ones(2 * SIZE - 1), 2, MPI.DOUBLE])


@pytest.mark.parametrize("algorithm", [None, "linear"])
@pytest.mark.parametrize("nothing", [[], (), None], ids=repr)
def test_what_has_no_meaning_on_a_rank_may_be_empty(world, nothing, algorithm):
    """As in programs that begin with ``data = [...] if rank == 0 else []``."""
    root, mine = SIZE - 1, np.full(EACH, RANK, float)
    at_root, options = root == RANK, {"root": root, **({"algorithm": algorithm} if algorithm else {})}
    whole, one = np.repeat(np.arange(SIZE, dtype=float), EACH), np.empty(EACH)
    for start in ("", "I"):

        def call(name, *arguments, start=start):
            request = getattr(world, start + (name.lower() if start else name))(*arguments, **options)
            if start:
                request.Wait()

        for _ in range(3):  # by the slow path, then by what that has kept
            found = np.empty(SIZE * EACH)
            call("Gather", mine, found if at_root else nothing)
            assert not at_root or (found == whole).all()
            call("Gatherv", mine, [found, COUNTS[0]] if at_root else nothing)
            call("Scatter", whole if at_root else nothing, one)
            assert (one == RANK).all()
            call("Scatterv", [whole, COUNTS[0]] if at_root else nothing, one)
            call("Reduce", mine, one if at_root else nothing)
            assert (one == (SIZE * (SIZE - 1) // 2 if at_root else RANK)).all()


def test_a_request_holds_its_buffers_and_its_communicator(world):
    """Nothing else does until it is complete."""
    comm = world.Dup()
    results = [np.full(4000, RANK) for _ in range(3)]
    requests = [comm.Iallreduce(MPI.IN_PLACE, result) for result in results]
    assert comm.last.collective == "allreduce"
    assert comm.last.nbytes == results[0].nbytes
    del comm
    MPI.Request.Waitall(requests)
    for result in results:
        assert (result == SIZE * (SIZE - 1) // 2).all()


def test_persistent_calls_of_both_ways_together(world):
    """One rank's buffers are ordinary, another's are not: the same groups and tags on all of them."""
    for turn in range(4):
        ordinary = (RANK + turn) % 2 == 0
        memory = np.full(6, float(RANK))
        datatype = MPI.DOUBLE.Create_contiguous(1).Commit()
        request = world.Bcast_init([memory, 6, MPI.DOUBLE if ordinary else datatype], turn % SIZE)
        ring = world.Allreduce_init(np.ones(4), total := np.zeros(4), algorithm="ring")
        ring.Start()
        request.Start()
        request.Wait()
        ring.Wait()
        assert (memory == turn % SIZE).all()
        assert (total == SIZE).all()
        datatype.Free()


@pytest.mark.parametrize("collective", [c for c in COLLECTIVES.values() if not c.vector], ids=lambda c: c.name)
def test_calls_like_earlier_ones(world, collective):
    """The second call of a form takes a shorter way: the same results and the same errors."""
    comm = world.Dup()
    for turn in range(4):
        for root in (0, SIZE - 1):
            mine, whole = np.full(2, RANK + turn), np.full(2 * SIZE, RANK + turn)
            one, many = np.full(2, -1), np.full(2 * SIZE, -1)
            total = SIZE * (SIZE - 1) // 2 + SIZE * turn
            ranks = np.repeat(np.arange(SIZE), 2) + turn
            arguments, expected = {
                "barrier": ((), None), "bcast": ((whole, root), (whole, root + turn)),
                "allgather": ((mine, many), (many, ranks)), "alltoall": ((whole, many), (many, ranks)),
                "gather": ((mine, many, root), (many, ranks if root == RANK else -1)),
                "scatter": ((whole, one, root), (one, root + turn)), "allreduce": ((mine, one), (one, total)),
                "reduce": ((mine, one, MPI.SUM, root), (one, total if root == RANK else -1)),
                "reduce_scatter_block": ((whole, one), (one, total)),
                "scan": ((mine, one), (one, sum(range(RANK + 1)) + turn * (RANK + 1))),
                "exscan": ((mine, one), (one, sum(range(RANK)) + turn * RANK if RANK else -1)),
            }[collective.name]  # fmt: skip
            getattr(comm, collective.method)(*arguments)
            if expected:
                assert (expected[0] == expected[1]).all()
                assert comm.last.collective == collective.name
    if collective.name in ("allgather", "alltoall"):
        whole = np.zeros(2 * SIZE, int)
        with pytest.raises(ValueError, match="overlap"):
            comm.Alltoall(whole, whole) if collective.name == "alltoall" else comm.Allgather(whole[:2], whole)
        whole.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            getattr(comm, collective.method)(np.zeros(2 if collective.name == "allgather" else 2 * SIZE, int), whole)
    comm.Free()


def test_calls_like_earlier_ones_but_for_the_default_order(world):
    """The communicator's ``deterministic`` counts for calls that do not say otherwise, whatever earlier calls left."""
    comm, result = world.Dup(), np.zeros(3)
    for _ in range(3):
        for default in (False, True):
            comm.deterministic = default
            for _ in range(2):
                comm.Barrier(algorithm="dissemination")
                comm.Allreduce(np.ones(3), result, algorithm="ring", deterministic=False)
                assert (result == SIZE).all()
                assert comm.last.algorithm == "ring"
                if default:
                    with pytest.raises(ValueError, match="does not fold in rank order"):
                        comm.Allreduce(np.ones(3), result, algorithm="ring")
                else:
                    comm.Allreduce(np.ones(3), result, algorithm="ring")
                    assert comm.last.algorithm == "ring"
    made = comm.Dup()
    assert made.deterministic
    made.Free()
    comm.Free()


@pytest.mark.parametrize("form", ["list", "tuple", "array", "pair", "typed"])
def test_vector_calls_like_earlier_ones(world, form):
    """The same where counts and displacements say so: other numbers, places and kinds of sequences are other forms."""
    comm = world.Dup()

    def blocks(array, counts, first=0):
        displs = [first + sum(counts[:i]) for i in range(SIZE)]
        return {
            "list": [array, counts], "tuple": (array, counts), "array": [array, np.array(counts)],
            "pair": [array, (counts, displs)], "typed": [array, counts, np.array(displs), MPI.INT64_T],
        }[form]  # fmt: skip

    for turn in range(6):
        more = turn % 2  # two forms in turn, each three times
        counts = [rank + 1 + more for rank in range(SIZE)]
        first = more if form in ("pair", "typed") else 0
        n = sum(counts)
        mine, many = np.full(counts[RANK], 10 * turn + RANK), np.full(n + 1, -1)
        expected = np.full(n + 1, -1)
        expected[first : first + n] = np.repeat(10 * turn + np.arange(SIZE), counts)
        comm.Allgatherv(mine, blocks(many, counts, first), algorithm="ring")
        assert (many == expected).all()
        many[:] = -1
        comm.Iallgatherv(mine, blocks(many, counts, first), algorithm="ring").Wait()
        assert (many == expected).all()
        sent, received = [counts[RANK]] * SIZE, counts
        many[:] = -1
        whole = np.full(SIZE * counts[RANK] + 1, 10 * turn + RANK)
        comm.Alltoallv(blocks(whole, sent, first), blocks(many, received, first), algorithm="linear")
        assert (many == expected).all()
        block = np.full(counts[RANK], -1)
        comm.Reduce_scatter(np.arange(n) + turn, block, counts, algorithm="linear")
        begin = sum(counts[:RANK])
        assert (block == SIZE * (np.arange(begin, begin + counts[RANK]) + turn)).all()
        for kind in (list, tuple, np.array):
            with pytest.raises((TypeError, ValueError), match="integer"):
                comm.Reduce_scatter(np.arange(n), block, kind([float(count) for count in counts]), algorithm="linear")
    if SIZE == 2:  # counts or count and displacement
        many = np.full(4, -1)
        comm.Allgatherv(np.full(1 + RANK, RANK), [many, [1, 2]], algorithm="ring")
        assert many.tolist() == [0, 1, 1, -1]
        comm.Allgatherv(np.full(1, RANK + 7), [many, (1, 2)], algorithm="ring")
        assert many.tolist() == [7, 1, 8, -1]
    comm.Free()


@pytest.mark.parametrize("length", [3, 40, 100_000])
def test_some_ranks_leave_the_counts_out(world, length):
    """Equal counts may be given or not, on each rank as it likes: the blocks are the same."""
    mine, many = np.full(length, float(RANK)), np.empty((SIZE, length))
    everyone = np.repeat(np.arange(float(SIZE)), length).reshape(SIZE, length)
    for given in range(SIZE):

        def spec(array, given=given):
            return [array, [length] * SIZE] if given == RANK else array

        world.Allgatherv(mine, spec(many))
        assert (many == everyone).all()
        many[:] = -1
        world.Alltoallv(spec(np.full((SIZE, length), float(RANK))), spec(many))
        assert (many == everyone).all()
        world.Scatterv(spec(everyone.copy()), mine, 0)
        assert (mine == RANK).all()
        many[:] = -1
        world.Gatherv(mine, spec(many), SIZE - 1)
        assert (many == (everyone if RANK == SIZE - 1 else -1)).all()


def test_who_looks_at_a_call_does_not_keep_its_buffers(world):
    """As the watchdog does once a second, in another thread."""
    stop, arrays = threading.Event(), []

    def look():
        while not stop.is_set():
            world._context.listed()

    looking = threading.Thread(target=look)
    looking.start()
    for _ in range(50):
        a = np.ones(100_000)
        world.Allreduce(a, np.empty_like(a), algorithm="ring")
        arrays.append(weakref.ref(a))
    stop.set()
    looking.join()
    del a
    assert [array() for array in arrays if array() is not None] == []


def test_methods_refuse_what_only_says_that_it_is_a_communicator(world):
    """A proxy names the class of what it stands for, but has not its memory, which compiled code reads."""
    x = np.ones(3)
    for other in (mock.Mock(spec=world), MPI.COMM_WORLD, 5):
        with pytest.raises(TypeError, match=r"expected a collectives\.Communicator, not"):
            Communicator.Allreduce(other, x, x.copy())
        with pytest.raises(TypeError, match=r"expected a collectives\.Communicator, not"):
            Communicator.bcast(other, 1)
