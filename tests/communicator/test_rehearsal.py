"""Wrong arguments of methods that make communicators: the rank that gives them raises, and no rank waits in MPI."""

import pytest
from jobs import mpiexec
from mpi4py import MPI

import collectives

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
