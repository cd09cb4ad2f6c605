"""More communicators than MPI has contexts for. Open MPI has no limit that a test could reach."""

import pytest
from mpi4py import MPI

import collectives


def test_limit_of_communicators():
    comm = collectives.Communicator(MPI.COMM_WORLD)
    plain, made = [], []
    with pytest.raises(MPI.Exception):
        plain.extend(MPI.COMM_SELF.Dup() for _ in range(100_000))
    for _ in range(100):
        plain.pop().Free()
    with pytest.raises(collectives.CollectiveError, match="no more communicators"):
        made.extend(comm.Dup() for _ in range(100))
    assert made
    for one in made + plain:
        one.Free()
    again = comm.Dup()
    assert again.allreduce(1) == MPI.COMM_WORLD.size
    again.Free()
    comm.Free()
