"""Calls that the MPI library serves: of calls that are alike, the later ones go to it at once, with what is theirs."""

import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments import movement
from collectives.communicator.nonblocking import Nonblocking
from collectives.selection.policy import Rules, Tuned

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
OTHERS = SIZE * (SIZE - 1) // 2
REDUCING = ("allreduce", "reduce", "reduce_scatter_block", "scan")
MOVING = (
    "bcast", "gather", "scatter", "allgather", "alltoall", "allgatherv", "gatherv", "scatterv", "alltoallv",
)  # fmt: skip


@pytest.fixture
def slow(monkeypatch):
    """Names of the calls that take the slow path."""
    seen, way = [], Nonblocking._run_now

    def noting(self, context, collective, *args):
        seen.append(collective.name)
        return way(self, context, collective, *args)

    monkeypatch.setattr(Nonblocking, "_run_now", noting)
    return seen


@pytest.fixture(params=["named", "tuned"])
def comm(request, monkeypatch):
    """A communicator whose calls MPI serves: so it was asked for, or a selection table says so."""
    if request.param == "named":
        monkeypatch.setenv("COLLECTIVES_ALGORITHM", "all=mpi")
    made = collectives.Communicator(MPI.COMM_WORLD)
    if request.param == "tuned":
        rows = {name: [(None, "mpi", None)] for name in (*MOVING, *REDUCING)}
        made._adopt_rules(Rules(tuned=Tuned(rows, "a table")))
    yield made
    made.Free()


def calls(comm, kind, turn):
    """Every collective on arrays of `kind`, once; it must give what it should."""
    x, y, n = np.full(3, RANK + turn, kind), np.empty(3, kind), SIZE * turn
    for op, total in ((MPI.SUM, OTHERS + n), (MPI.MAX, SIZE - 1 + turn)):
        comm.Allreduce(x, y, op)
        assert (y == total).all()
        y[:] = x
        comm.Allreduce(MPI.IN_PLACE, y, op)
        assert (y == total).all()
    comm.Reduce(x, y if RANK == SIZE - 1 else None, MPI.SUM, SIZE - 1)
    assert RANK < SIZE - 1 or (y == OTHERS + n).all()
    comm.Scan(x, y)
    assert (y == sum(range(RANK + 1)) + (RANK + 1) * turn).all()
    every = np.arange(3 * SIZE, dtype=kind)
    comm.Reduce_scatter_block(every, y)
    assert (y == SIZE * every[3 * RANK : 3 * RANK + 3]).all()
    all_of = np.empty((SIZE, 3), kind)
    comm.Allgather(x, all_of)
    assert (all_of == np.arange(SIZE, dtype=kind)[:, None] + kind(turn)).all()
    comm.Alltoall(all_of.copy(), all_of)
    assert (all_of == RANK + turn).all()
    for root in {0, SIZE - 1}:
        comm.Gather(x, all_of if root == RANK else None, root)
        assert root != RANK or (all_of[:, 0] == np.arange(SIZE, dtype=kind) + kind(turn)).all()
        comm.Scatter(all_of if root == RANK else None, y, root)
        assert (y == RANK + turn).all()
        comm.Bcast(y, root)
        assert (y == root + turn).all()
        assert comm.last.algorithm == "mpi"
    comm.Barrier()


KINDS = (np.float32, np.int32, np.float64, np.int64)  # two have elements of one size


def test_calls_that_are_alike(comm, slow):
    for kind in KINDS:
        for turn in range(3):
            calls(comm, kind, turn)
            if turn == 0:
                slow.clear()
        assert [name for name in slow if name != "barrier"] == []


def test_messages_of_more_bytes_than_mpi_can_count(comm, monkeypatch):
    """They go in longer elements."""
    monkeypatch.setattr(movement, "LARGEST", 16)
    for turn in range(2):
        calls(comm, np.float64, turn)
        counts = [r + 2 for r in range(SIZE)]
        x, every = np.full(RANK + 2, float(RANK)), np.repeat(np.arange(float(SIZE)), counts)
        found = np.zeros(sum(counts))
        comm.Allgatherv(x, [found, counts])
        assert (found == every).all()
        for root in {0, SIZE - 1}:
            found[:] = x[:] = -1
            comm.Scatterv([every, counts] if root == RANK else None, x, root)
            assert (x == RANK).all()
            comm.Gatherv(x, [found, counts] if root == RANK else None, root)
            assert root != RANK or (found == every).all()
        comm.Alltoallv([np.full(2 * SIZE, float(RANK)), [2] * SIZE], [found[: 2 * SIZE], [2] * SIZE])
        assert (found[: 2 * SIZE] == np.repeat(np.arange(SIZE), 2)).all()
        assert comm.last.algorithm == "mpi"


def test_what_is_like_an_earlier_call_but_for_its_elements(comm):
    """Of moved data, those of a type that MPI does not know go as bytes."""
    comm.Bcast(np.full(3, RANK, np.float32))
    numbers = np.full(3, RANK, np.int32)
    comm.Bcast(numbers)
    assert (numbers == 0).all()
    pairs = np.full(3, RANK, [("a", np.int16), ("b", np.int16)])
    comm.Bcast(pairs, SIZE - 1)
    assert (pairs["b"] == SIZE - 1).all()
    pairs[:] = (RANK, RANK)
    comm.Bcast(pairs)
    assert (pairs["b"] == 0).all()
    block = bytearray(12 * [RANK])
    comm.Bcast(block)
    assert block == bytearray(12)


def test_a_timeout_that_comes_later(comm):
    """A call under a timeout is MPI's non-blocking one, on all ranks."""
    x, y = np.ones(3), np.empty(3)
    for timeout in (None, 60, None):
        comm.timeout = timeout
        for _ in range(2):
            comm.Allreduce(x, y)
            assert (y == SIZE).all()
    for _ in range(2):
        comm.Allreduce(x, y, timeout=60)
        assert (y == SIZE).all()


def test_calls_are_counted_and_refused_as_ever(comm):
    x, y = np.ones(3), np.empty(3)
    comm.Allreduce(x, y)
    begun = comm._context.begun
    for _ in range(3):
        comm.Allreduce(x, y)
    assert comm._context.begun == begun + 3
    duplicate = comm.Dup()
    duplicate.Allreduce(x, y)
    duplicate.Allreduce(x, y)
    duplicate.Free()
    with pytest.raises((MPI.Exception, collectives.CollectiveError)):
        duplicate.Allreduce(x, y)


def test_lists_that_begin_with_an_array(comm, slow):
    """mpi4py's ``[array, datatype]``; one with another datatype is another call."""
    for turn in range(4):
        if turn == 1:
            slow.clear()
        x = np.full(3, RANK + turn, np.float64)
        comm.Bcast([x, MPI.DOUBLE])
        assert (x == turn).all()
        numbers = np.full(3, RANK + turn, np.int64)
        comm.Bcast([numbers, MPI.INT64_T], SIZE - 1)
        assert (numbers == SIZE - 1 + turn).all()
    assert slow == []


def test_memory_that_mpi_has_is_not_resized(comm):
    """By another thread, while this one waits."""
    if SIZE == 1:
        pytest.skip("one rank does not wait")
    for _ in range(3):
        data, found = bytearray(8 * [RANK]), []
        other = threading.Thread(target=resize, args=(data, found))
        if RANK == 0:
            time.sleep(0.5)
        else:
            other.start()
        comm.Bcast(data)
        if RANK != 0:
            other.join()
        assert RANK == 0 or found == ["BufferError"]
        assert data[:8] == bytearray(8)


def resize(data, found):
    """Once the main thread waits in the call: in the same place of the library for a while."""
    place = before = None
    while place is None or place != before or place[0] == __file__:
        time.sleep(0.05)
        frame = sys._current_frames()[threading.main_thread().ident]
        place, before = (frame.f_code.co_filename, frame.f_lasti), place
    try:
        data.extend(bytes(1 << 20))
        found.append("resized")
    except BufferError:
        found.append("BufferError")


def test_a_communicator_that_is_freed_in_a_group():
    comm = collectives.Communicator(MPI.COMM_WORLD)
    x, y = np.ones(3), np.empty(3)
    comm.Allreduce(x, y)
    with comm.group():
        comm.Free()
        with pytest.raises(MPI.Exception, match="ommunicator"):
            comm.Allreduce(x, y)
