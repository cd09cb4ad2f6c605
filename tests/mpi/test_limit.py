"""More communicators than MPI has contexts for. Open MPI has no limit that a test could reach."""

import pytest
from mpi4py import MPI

import collectives


def test_limit_of_communicators():
    made = []
    comm = collectives.Communicator(MPI.COMM_WORLD)
    with pytest.raises(collectives.CollectiveError, match="no more communicators"):
        made.extend(comm.Dup() for _ in range(20_000))
    for one in made:
        one.Free()
    again = comm.Dup()
    assert again.allreduce(1) == MPI.COMM_WORLD.size
    again.Free()
    comm.Free()
