"""A process with an MPI session and without MPI.Init: a communicator of this library is refused, and says why."""

from jobs import mpiexec

PROGRAM = """
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
import collectives

session = MPI.Session.Init()
group = session.Create_group("mpi://WORLD")
comm = MPI.Intracomm.Create_from_group(group)
try:
    collectives.Communicator(comm)
except collectives.CollectiveError as e:
    print(e, flush=True)
comm.Free()
group.Free()
session.Finalize()
"""


def test_a_session_is_not_enough():
    """Open MPI makes no communicators of groups here; of Intel MPI's sessions, Is_initialized says True."""
    done = mpiexec("mpich", 2, "-c", PROGRAM, timeout=60)
    assert done.returncode == 0, done
    assert done.stdout.splitlines() == [
        "MPI.Init has not been called; an MPI session is not enough for a Communicator"
    ] * 2  # fmt: skip
