"""All-to-allw and the collectives of neighbours on drawn graphs and grids: the standard's results, and MPI's own.

A message is a run of float32 for an edge; all ranks draw the same cases. Buffers are compared as a whole, so that
gaps, and the parts of neighbours that do not exist, must stay as they were.
"""

import itertools
import mmap

import numpy as np
import pytest
from mpi4py import MPI

import collectives

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
OPEN_MPI = "Open MPI" in MPI.Get_library_version()
INTEL = "Intel" in MPI.Get_library_version()
UNTOUCHED = -7.0
NAMES = ["neighbor_allgather", "neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv", "neighbor_alltoallw"]
WAYS = [{}, {"algorithm": "pairwise"}, {"algorithm": "linear"}, {"engine": "python"}]
SEEDS = range(12)
#: Mapped when this file is read, before there is a communicator: it lies above the heap, as later memory does not.
EARLY = np.frombuffer(mmap.mmap(-1, 8000))


class Side:
    """The blocks of one side of a call on this rank: their lengths, and where they lie in an array."""

    def __init__(self, chance, lengths, form, count):
        self.form, self.lengths, self.count = form, list(lengths), count
        self.strides = [int(chance.integers(1, 4)) if form == "w" else 1 for _ in lengths]
        self.starts = [0] * len(self.lengths)
        order = range(len(self.lengths)) if form == "" else chance.permutation(len(self.lengths))
        end = 0 if form == "" else int(chance.integers(0, 3))
        for i in order:
            self.starts[i] = end
            end += self.lengths[i] * self.strides[i] + (0 if form == "" else int(chance.integers(0, 3)))
        self.array = np.full(end, UNTOUCHED, np.float32)
        self.types = []

    def places(self, i):
        return self.starts[i] + self.strides[i] * np.arange(self.lengths[i])

    def spec(self):
        if self.form == "":  # Open MPI 5.0.11 needs counts where there are no neighbours on one side
            return [self.array, self.count, MPI.FLOAT]
        if self.form == "v":
            return [self.array, (self.lengths, self.starts), MPI.FLOAT]
        self.types = [
            MPI.FLOAT.Create_vector(n, 1, s).Commit() for n, s in zip(self.lengths, self.strides, strict=True)
        ]
        return [self.array, ([1] * len(self.types), [4 * s for s in self.starts]), self.types]

    def free(self):
        for datatype in self.types:
            datatype.Free()


class Case:
    """A call of this rank on a topology: its buffers, and what must arrive.

    ``sent`` and ``received`` are the numbers of the messages, in the order of this rank's neighbours; a negative number
    is one that does not exist.
    """

    def __init__(self, seed, name, sent, received, sources):
        chance = np.random.default_rng([seed, 0])  # alike on all ranks
        most = int(chance.choice([1, 4, 300, 40_000 if seed == 3 else 4]))
        lengths = chance.integers(0, most + 1, 4096)  # by number of the message
        form = name[-1] if name[-1] in "vw" else ""
        if not form:
            lengths[:] = most
        own = np.random.default_rng([seed, 1 + RANK])
        self.gathers = "allgather" in name
        if self.gathers:
            self.send = Side(own, [lengths[RANK]], "", int(lengths[RANK]))
            incoming = [lengths[q] if q >= 0 else most for q in sources]
        else:
            self.send = Side(own, [lengths[e] if e >= 0 else most for e in sent], form, most)
            incoming = [lengths[e] if e >= 0 else most for e in received]
        self.recv = Side(own, incoming, form, most)
        for i, e in enumerate([RANK] if self.gathers else sent):
            self.send.array[self.send.places(i)] = self.message(e, self.send.lengths[i])
        self.expected = self.recv.array.copy()
        for i, (e, q) in enumerate(zip(received, sources, strict=True)):
            if q >= 0:
                self.expected[self.recv.places(i)] = self.message(q if self.gathers else e, self.recv.lengths[i])
        self.arguments = self.send.spec(), self.recv.spec()

    @staticmethod
    def message(number, length):
        return (1000.0 * number + np.arange(length) % 997).astype(np.float32)

    def check(self, call):
        """Make the call, and compare the whole buffer; returns what arrived."""
        self.recv.array[:] = UNTOUCHED
        call(*self.arguments)
        found = self.recv.array.copy()
        right = WORLD.allreduce(np.array_equal(found, self.expected), MPI.LAND)
        assert right, (found.tolist()[:40], self.expected.tolist()[:40])

    def free(self):
        self.send.free()
        self.recv.free()


def forms(comm, name, way):
    """The blocking, non-blocking and persistent form of a call as functions."""
    method = name.capitalize()
    later = {key: value for key, value in way.items() if key == "algorithm"}

    def starting(*buffers):
        getattr(comm, f"I{name}")(*buffers, **later).Wait()

    def lasting(*buffers):
        request = getattr(comm, f"{method}_init")(*buffers, **later)
        for _ in range(2):
            request.Start()
            request.Wait()
        request.Free()

    yield lambda *buffers: getattr(comm, method)(*buffers, **way)
    if way.get("engine") is None:
        yield from (starting, lasting)


def check_all(seed, name, comm, plain, sent, received, sources, theirs=True):
    case = Case(seed, name, sent, received, sources)
    for way in WAYS if SIZE < 5 or seed % 4 == 0 else WAYS[:1]:
        for call in forms(comm, name, way):
            case.check(call)
    case.check(getattr(comm, name.capitalize()))  # by the fast path, where the first call was ordinary
    if theirs:
        case.check(getattr(plain, name.capitalize()))
        case.check(lambda *buffers: getattr(comm, name.capitalize())(*buffers, algorithm="mpi"))
    case.free()


def drawn_edges(seed):
    """Edges (source, target) of a graph, the same on all ranks, some of them several times."""
    chance = np.random.default_rng([seed, 77])
    edges = [tuple(map(int, edge)) for edge in chance.integers(0, SIZE, (int(chance.integers(0, 3 * SIZE + 1)), 2))]
    if seed % 3 == 0:  # each edge once
        edges = list(dict.fromkeys(edges))
    return edges, chance.permutation(SIZE)


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_graphs(world, seed):
    """Self-loops, edges that are there several times, ranks without neighbours, blocks without elements."""
    edges, order = drawn_edges(seed)
    sent = [e for e, (q, _) in enumerate(edges) if q == RANK]
    received = sorted((e for e, (_, d) in enumerate(edges) if d == RANK), key=lambda e: order[edges[e][0]])
    sources, targets = [edges[e][0] for e in received], [edges[e][1] for e in sent]
    comm = world.Create_dist_graph_adjacent(sources, targets)
    plain = WORLD.Create_dist_graph_adjacent(sources, targets)
    for name in NAMES:
        check_all(seed, name, comm, plain, sent, received, sources, theirs=True)
    assert comm.last.algorithm == "mpi"
    comm.Free()
    plain.Free()


GRIDS = [(dims, periods) for dims in ([SIZE], [SIZE, 1], MPI.Compute_dims(SIZE, 2))
         for periods in itertools.product([False, True], repeat=len(dims))]  # fmt: skip


@pytest.mark.parametrize(("dims", "periods"), GRIDS, ids=str)
def test_grids(world, dims, periods):
    """What is sent downwards arrives from above, also if both neighbours are one rank; nothing arrives at the edge."""
    comm, plain = world.Create_cart(dims, periods), WORLD.Create_cart(dims, periods)
    ways = 2 * len(dims)
    sources = [rank for axis in range(len(dims)) for rank in comm.Shift(axis, 1)]
    sent = [RANK * ways + i if sources[i] >= 0 else -1 for i in range(ways)]
    received = [sources[i] * ways + (i ^ 1) if sources[i] >= 0 else -1 for i in range(ways)]
    twice = any(periods[axis] and length <= 2 for axis, length in enumerate(comm.dims))
    for name in NAMES:
        # Intel MPI 2021.18 has what is sent downwards arrive from below if that is the rank above, too.
        check_all(len(GRIDS), name, comm, plain, sent, received, sources, theirs=not (INTEL and twice))
    comm.Free()
    plain.Free()


def test_graphs(world):
    """A ring of MPI's older kind of graph."""
    near = sorted({(RANK - 1) % SIZE, (RANK + 1) % SIZE})
    degrees = [len({(r - 1) % SIZE, (r + 1) % SIZE}) for r in range(SIZE)]
    edges = [q for r in range(SIZE) for q in sorted({(r - 1) % SIZE, (r + 1) % SIZE})]
    comm = world.Create_graph(np.cumsum(degrees).tolist(), edges)
    x, y = np.full(3, RANK), np.zeros((len(near), 3), int)
    comm.Neighbor_allgather(x, y)
    assert (y == np.array(near)[:, None]).all()
    comm.Free()


@pytest.mark.parametrize("seed", SEEDS)
def test_alltoallw(world, seed):
    everybody = list(range(SIZE))
    sent, received = [RANK * SIZE + q for q in everybody], [q * SIZE + RANK for q in everybody]
    # Open MPI 5.0.11 writes to wrong places where there is one rank.
    check_all(seed, "alltoallw", world, WORLD, sent, received, everybody, theirs=not (OPEN_MPI and SIZE == 1))


def test_alltoallw_in_place(world):
    for comm in (WORLD, world, world):
        x = np.array([100.0 * RANK + q for q in range(SIZE)])
        comm.Alltoallw(MPI.IN_PLACE, [x, ([1] * SIZE, [8 * q for q in range(SIZE)]), [MPI.DOUBLE] * SIZE])
        assert x.tolist() == [100.0 * q + RANK for q in range(SIZE)]
        y = np.zeros(SIZE)
        comm.Alltoallw([x, [MPI.DOUBLE] * SIZE], [y, [1] * SIZE, [8 * q for q in range(SIZE)], [MPI.DOUBLE] * SIZE])
        assert y.tolist() == WORLD.allgather(x[0])  # where they are not given, counts are 1 and places 0


def test_alltoallw_from_several_arrays(world):
    """By absolute addresses, in the shared memory of the node and elsewhere; the lowest one is in the shared memory."""
    n, counts, types = EARLY.size, [EARLY.size] * SIZE, [MPI.DOUBLE] * SIZE
    arrays = [world.empty(n), EARLY]
    assert MPI.Get_address(arrays[0]) < MPI.Get_address(EARLY)
    for i, array in enumerate(arrays):
        array[:] = 10 * RANK + i
    for shift in (0, 1):
        sent = [MPI.BOTTOM, counts, [MPI.Get_address(arrays[(q + shift) % 2]) for q in range(SIZE)], types]
        for call in (world.Alltoallw, lambda *buffers: world.Ialltoallw(*buffers).Wait()):
            y = np.full((SIZE, n), -1.0)
            call(sent, [y, counts, [8 * n * q for q in range(SIZE)], types])
            assert (y == [[10 * q + (RANK + shift) % 2] for q in range(SIZE)]).all()
    world.Barrier()  # the communicator is as good as before


def test_what_ran_is_told(world):
    comm = world.Create_cart([SIZE], [True])
    x, y = np.ones(4), np.zeros(8)
    for _ in range(2):
        comm.Neighbor_allgather(x, y)
        last = comm.last
        assert (last.collective, last.algorithm) == ("neighbor_allgather", "shm"), last
    assert (y == 1).all()
    comm.Neighbor_alltoall(y, np.zeros(8), algorithm="linear")
    assert (comm.last.collective, comm.last.algorithm) == ("neighbor_alltoall", "linear")
    assert "shm" in str(comm.explain("neighbor_alltoall", 64))
    assert "linear" in collectives.algorithms("neighbor_alltoall")
    comm.Free()


def test_wrong_arguments(world):
    comm = world.Create_cart([SIZE], [True])
    x, y = np.ones(4), np.zeros(8)
    types = [MPI.DOUBLE, MPI.DOUBLE]
    wrong = [
        (comm.Neighbor_allgather, (MPI.IN_PLACE, y), TypeError, "never in place"),
        (comm.Neighbor_allgather, (x, y[::2]), ValueError, "recvbuf: the array is strided"),
        (comm.Neighbor_alltoall, (y, np.zeros(7)), ValueError, "recvbuf: 7 elements cannot be divided"),
        (comm.Neighbor_alltoallv, ([y, [4, 4, 4]], [np.zeros(8), [4, 4]]), ValueError, "expected 2 integers"),
        (comm.Neighbor_alltoallv, ([y, [4, -4]], [np.zeros(8), [4, 4]]), ValueError, "negative"),
        (comm.Neighbor_alltoallw, ([y, types], [np.zeros(8), [MPI.DOUBLE]]), TypeError, "list of 2 datatypes"),
        (comm.Neighbor_alltoallw, ([y, ([1, 9], [0, 0]), types], [np.zeros(8), types]), ValueError, "block 1"),
        (comm.Neighbor_alltoallw, (y, [np.zeros(8), types]), TypeError, "sendbuf: expected"),
        (comm.Neighbor_alltoall, (y, y), ValueError, "overlap"),
        (comm.Neighbor_alltoallv, ([y, ([2, 2], [0, 5])], [y, ([2, 2], [6, 3])]), ValueError, "overlap"),
        (world.Alltoallw, ([x, 3, 4], [y, types]), (TypeError, ValueError), "recvbuf|sendbuf"),
    ]
    for call, arguments, kind, text in wrong:
        with pytest.raises(kind, match=text):
            call(*arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'algoritm'"):
        comm.Neighbor_allgather(x, y, algoritm="linear")
    with pytest.raises(ValueError, match="no algorithm 'ring'"):
        comm.Neighbor_allgather(x, y, algorithm="ring")
    comm.Neighbor_allgather(x, y)  # nothing was sent
    assert (y == 1).all()
    comm.Free()


def test_messages_longer_than_the_ring(world):
    """Blocks of some MB: in segments, from private memory, and from arrays that the ranks share."""
    comm = world.Create_dist_graph_adjacent([(RANK - 1) % SIZE], [(RANK + 1) % SIZE])
    for n in (100_000, 3_000_000):
        for made in (np.empty, comm.empty):
            x, y = made(n, np.float32), made(n, np.float32)
            x[:], y[:] = RANK + np.arange(n) % 1000, -1
            comm.Neighbor_alltoall(x, y)
            assert (y == (RANK - 1) % SIZE + np.arange(n) % 1000).all()
    comm.Free()
