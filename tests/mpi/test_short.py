"""The short way: which calls take it, and that they do what the long way does, errors included."""

import array

import numpy as np
import pytest
from mpi4py import MPI

from collectives.operations import Operations

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
EACH = 3
COUNTS = ([EACH] * SIZE, [EACH * i for i in range(SIZE)])


@pytest.fixture
def long_ways(monkeypatch):
    """Names of the calls that take the long way."""
    seen = []
    prepare = Operations._prepare

    def noting(self, collective, arguments, options, threads=False):
        seen.append(collective.name)
        return prepare(self, collective, arguments, options, threads)

    monkeypatch.setattr(Operations, "_prepare", noting)
    return seen


def specs(memory, datatype, count):
    """Ways to say the same buffer."""
    return [memory, [memory], [memory, datatype], (memory, count), [memory, count, datatype]]


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


def test_buffers_of_all_forms(world, long_ways):
    """Arrays and Python's own buffers, with or without count and datatype, go the short way."""
    for spec in range(5):
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
    assert long_ways == []


def test_unequal_blocks_of_all_forms(world, long_ways):
    for kind in range(3):
        for block in ([COUNTS], [COUNTS, MPI.DOUBLE], [COUNTS[0]], [*COUNTS, MPI.DOUBLE]):
            for call in forms(world, "Allgatherv"):
                send, receive = memories([RANK] * EACH)[kind], memories([-1.0] * EACH * SIZE)[kind]
                call([send, EACH, MPI.DOUBLE], [receive, *block])
                assert list(receive) == [i // EACH for i in range(EACH * SIZE)]
    assert long_ways == []


def test_a_part_of_a_buffer(world, long_ways):
    """A count shorter than the buffer leaves the rest as it is."""
    for call in forms(world, "Allreduce"):
        receive = np.full(5, -1.0)
        call([np.ones(9), 2, MPI.DOUBLE], [receive, 2, MPI.DOUBLE])
        assert receive.tolist() == [SIZE, SIZE, -1, -1, -1]
    assert long_ways == []


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
def test_what_is_wrong_is_said_by_the_long_way(world, send, receive, kind, message):
    for call in forms(world, "Allreduce"):
        with pytest.raises(kind, match=message):
            call(send, receive)


def test_results_of_more_than_the_buffer_has_are_refused(world):
    with pytest.raises(ValueError, match="recvbuf: .* elements from 0 on in a buffer of"):
        world.Allgather([np.ones(2), MPI.DOUBLE], [np.ones(2 * SIZE - 1), 2, MPI.DOUBLE])


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
