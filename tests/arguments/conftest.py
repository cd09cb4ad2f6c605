"""What the tests of arguments share."""

import pytest
from mpi4py import MPI

import collectives


@pytest.fixture(scope="module")
def comm():
    made = collectives.Communicator(MPI.COMM_SELF)
    yield made
    made.Free()
