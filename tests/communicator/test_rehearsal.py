"""Wrong arguments of methods that make communicators: the rank that gives them raises, and no rank waits in MPI."""

import threading
import time
import types

import numpy as np
import pytest
from jobs import mpiexec
from mpi4py import MPI

import collectives
from collectives.communicator import rehearsal

ONE_IS_WRONG = """
from mpi4py import MPI
import collectives

grid = collectives.Communicator(MPI.COMM_WORLD).Create_cart([2, 1])
if grid.rank == 0:
    try:
        grid.Sub([True])
    except ValueError as e:
        print(e, flush=True)
rows = grid.Sub([True, False])
print("size", rows.size, flush=True)
"""


def test_ranks_do_not_wait_for_one_with_a_wrong_part_of_a_grid():
    done = mpiexec("openmpi", 2, "-c", ONE_IS_WRONG, timeout=30)
    assert "expecting 2 items, got 1" in done.stdout, done
    assert done.stdout.count("size 2") == 2, done


@pytest.mark.parametrize("dims", [[1, 1], [1], []], ids=str)
def test_wrong_parts_of_a_grid_are_refused_before_the_ranks_meet(dims, monkeypatch):
    comm = collectives.Communicator(MPI.COMM_SELF)
    grid = comm.Create_cart(dims)
    for kept in ([True] * len(dims), (False,) * len(dims)):
        part = grid.Sub(kept)
        assert part.dim == sum(kept)
        part.Free()
    monkeypatch.setattr(collectives.communicator.Cartcomm, "_make", lambda *args: pytest.fail("the ranks have met"))
    for wrong, error in (([True] * (len(dims) + 1), ValueError), (None, TypeError), ([1.5] * (len(dims) or 2), None)):
        with pytest.raises(error or (TypeError, ValueError)):
            grid.Sub(wrong)
    grid.Free()
    comm.Free()


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_neighbours_and_edges_come_as_arrays(count, weighted):
    """Arrays have no truth value, except one of one item: that of [0] is false."""
    ranks, weights = np.zeros(count, int), np.arange(1, count + 1) if weighted else None
    comm, found = collectives.Communicator(MPI.COMM_SELF), []
    for maker in (comm, MPI.COMM_SELF):
        near = maker.Create_dist_graph_adjacent(ranks, ranks, weights, weights)
        edges = maker.Create_dist_graph(ranks[:1], np.array([count])[: len(ranks)], ranks, weights)
        found.append([(sorted(made.Get_dist_neighbors()[0]), made.Get_dist_neighbors()[2]) for made in (near, edges)])
        near.Free()
        edges.Free()
    assert found[0] == found[1]
    assert found[0][0][0] == [0] * count
    comm.Free()


@pytest.mark.parametrize(
    "make",
    [
        lambda comm: comm.Create_dist_graph_adjacent(iter([0]), [0]),
        lambda comm: comm.Create_dist_graph([0], [1], {0}),
        lambda comm: comm.Create_cart({1}),
        lambda comm: comm.Create_graph(iter([1]), [0]),
    ],
)
def test_what_is_no_sequence_is_refused_before_the_ranks_meet(make, monkeypatch):
    """mpi4py takes neither generators nor sets."""
    comm = collectives.Communicator(MPI.COMM_SELF)
    monkeypatch.setattr(collectives.Communicator, "_make", lambda *args: pytest.fail("the ranks have met"))
    with pytest.raises(TypeError):
        make(comm)
    comm.Free()


def test_threads_rehearse_one_by_one(monkeypatch):
    """MPI forbids two collectives on MPI_COMM_SELF at a time."""
    inside, most = [], []

    def Dup():
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.05)
        inside.pop()

    stand_in = types.SimpleNamespace(Dup=Dup)
    mpi = types.SimpleNamespace(COMM_SELF=None, COMM_NULL=None, Intracomm=lambda comm: stand_in)
    monkeypatch.setattr(rehearsal, "MPI", mpi)
    threads = [threading.Thread(target=rehearsal.rehearse, args=("Dup",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
