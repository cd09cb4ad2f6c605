"""Messages of more bytes than a count of 32 bits can hold, which a selection table gives to the MPI library."""

import numpy as np
import pytest
from mpi4py import MPI

import collectives
from collectives.arguments import movement
from collectives.arguments.calls import COLLECTIVES
from collectives.arguments.shape import Shape
from collectives.selection.policy import Rules, Tuned

GIB = 1 << 30
MOST = 2**31 - 1


def described(name, cuts, rank=0):
    """What MPI's method is given by a rank; the memory is never looked at."""
    about = COLLECTIVES[name]
    shape = Shape(about.base, 0, cuts[-1], 1, -1, None, False, cuts if about.vector else None)
    return movement.as_bytes(about, shape, 4096, 4096, rank, len(cuts) - 1)


@pytest.mark.parametrize("itemsize", [8, 12, 1000])
@pytest.mark.parametrize("name", ["gatherv", "allgatherv"])
def test_counts_and_displacements_fit(name, itemsize):
    """Blocks are where they were, and of as many bytes, up to the most elements that MPI could count anyway."""
    for whole in (3 * GIB // itemsize, MOST):
        cuts = tuple(itemsize * n for n in (0, whole // 2, whole // 2, whole - 1, whole))
        memory, (counts, displs), kind = described(name, cuts).recvbuf
        assert max(*counts, *displs) <= MOST
        assert [kind.size * displ for displ in (*displs, displs[-1] + counts[-1])] == list(cuts)
        assert memory.nbytes == cuts[-1]


@pytest.mark.parametrize("name", ["bcast", "gather", "scatter", "allgather", "alltoall"])
def test_ranks_that_know_one_length_count_in_the_same_elements(name):
    for each in (24 * GIB, 6 * GIB + 24):
        cuts = tuple(each * i for i in range(4))
        given = [described(name, cuts, rank) for rank in range(3)]
        kinds = [spec[-1] for one in given for spec in (one.sendbuf, one.recvbuf) if spec is not None]
        assert len({kind.handle for kind in kinds}) == 1
        assert cuts[-1] // kinds[0].size <= MOST
    assert described(name, (0, 4, 8)).sendbuf[-1] == MPI.BYTE


def test_such_a_call():
    comm = collectives.Communicator(MPI.COMM_SELF)
    comm._adopt_rules(Rules(tuned=Tuned(dict.fromkeys(("bcast", "gatherv"), [(None, "mpi", None)]), "a table")))
    x = np.empty(2 * GIB // 8 + 1)  # of which nothing is touched
    for call in (lambda: comm.Bcast(x), lambda: comm.Gatherv(MPI.IN_PLACE, [x, [x.size]])):
        for _ in range(2):
            call()
        assert comm.last.algorithm == "mpi"
    comm.Free()
