"""Duplicates that `Idup` begins, which MPI alone knows at first; the end of a communicator by Free or Disconnect."""

import numpy as np
import pytest
from mpi4py import MPI

from collectives import Communicator

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size


def total(comm):
    """Sum of 1 over the ranks by this library's all-reduce."""
    ones = np.ones(3)
    comm.Allreduce(MPI.IN_PLACE, ones)
    return int(ones[0])


def test_settings_of_a_nonblocking_duplicate_are_local(world):
    """They do not set it up: rank 0 changes and reads them while the others wait for a message of its."""
    made, request = world.Idup()
    request.Wait()
    assert made.timeout == world.timeout
    if RANK == 0:
        made.timeout = 40
        assert made.timeout == 40
        for other in range(1, SIZE):
            WORLD.send(None, other)
    else:
        WORLD.recv(source=0)
    made.deterministic = True
    assert "not set up" in repr(made)
    again, request = made.Idup()
    request.Wait()
    for comm in (made, again):
        assert comm.deterministic
        assert total(comm) == SIZE
        assert comm.deterministic
        assert comm.timeout == (40 if RANK == 0 else world.timeout)
        comm.Free()
        with pytest.raises(MPI.Exception):
            assert comm.timeout
    assert not world.deterministic


def test_members_alone_make_a_communicator_from_a_nonblocking_duplicate(world):
    made, request = world.Idup()
    request.Wait()
    if RANK < (SIZE + 1) // 2:
        part = made.Create_group(world.group.Incl(range((SIZE + 1) // 2)), 3)
        assert type(part) is Communicator
        assert total(part) == (SIZE + 1) // 2
        assert part.timeout == world.timeout
        part.Free()
    assert "not set up" in repr(made)
    WORLD.Barrier()  # the others make nothing
    assert total(made) == SIZE
    made.Free()


def test_nonblocking_duplicates(world):
    for start in (world.Idup, world.Idup_with_info):
        made, request = start(MPI.INFO_NULL) if start is not world.Idup else start()
        request.Wait()
        assert type(made) is Communicator
        assert total(made) == SIZE
        made.Free()


def test_attributes_are_copied_once():
    """Not to the communicator that carries the library's own messages, nor to that of calls with objects."""
    plain, copied = WORLD.Dup(), []

    def copy(comm, key, value):
        copied.append(value)
        return value + 1

    key = MPI.Comm.Create_keyval(copy_fn=copy)
    plain.Set_attr(key, 1)
    comm = Communicator(plain)
    assert (copied, comm.Get_attr(key)) == ([1], 2)
    second = comm.Dup()
    assert (copied, second.Get_attr(key)) == ([1, 2], 3)
    third, request = second.Idup()
    request.Wait()
    assert total(third) == SIZE
    assert (copied, third.Get_attr(key)) == ([1, 2, 3], 4)
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
        assert third.iallreduce(1).wait() == SIZE
    assert copied == [1, 2, 3]
    for made in (third, second, comm, plain):
        made.Free()
    MPI.Comm.Free_keyval(key)


@pytest.mark.parametrize("end", ["Free", "Disconnect"])
def test_the_end_is_that_of_mpi(world, end):
    """MPI_Comm_disconnect completes what is under way on the communicator, which MPI_Comm_free does not wait for."""
    called = []

    class Told(MPI.Intracomm):
        def Free(self):
            called.append("Free")
            super().Free()

        def Disconnect(self):
            called.append("Disconnect")
            super().Disconnect()

    class Mine(Communicator, Told):
        """A user's own."""

    mine = Mine(world)
    assert total(mine) == SIZE
    sent = mine.isend(RANK, (RANK + 1) % SIZE)
    assert mine.recv(source=(RANK - 1) % SIZE) == (RANK - 1) % SIZE
    if SIZE == 1:
        sent.wait()  # MPICH's disconnect waits for ever for a message of a rank to itself
    getattr(mine, end)()
    sent.wait()
    assert called == [end]
    assert mine == MPI.COMM_NULL
