"""Non-blocking calls that only MPI waits for (Waitall): what is found, reported and ended, on each of the MPIs."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from jobs import LIVE_ON
from scripts import run

from collectives.waiting.unattended import Unattended

pytestmark = pytest.mark.in_turn

#: Rank 0 waits in MPI, then in the library; LAST is what rank 1 does instead of the call.
WAITALL = """
signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # how MPICH's launcher tells survivors of a death
MPI.Request.Waitall([comm.Iallreduce(np.ones(10), np.ones(10), algorithm=ALGORITHM)])
if rank == 1:
    time.sleep(1)
    LAST
request = comm.Iallreduce(np.ones(10), np.ones(10), algorithm=ALGORITHM)
begun = time.monotonic()
try:
    MPI.Request.Waitall([request])
    report("complete")
except MPI.Exception:
    report("MPI's error after", time.monotonic() - begun)
    try:
        request.Wait()
    except collectives.CollectiveError as e:
        report(type(e).__name__, e)
    os._exit(0)
"""
BOTH = pytest.mark.parametrize("algorithm", [None, "ring"])


def waitall(mpi, last, algorithm, env=None, flags=(), timeout=None):
    """The output of a job in which rank 1 does not join the second call."""
    program = f"comm.timeout = {timeout}\n{WAITALL}".replace("LAST", last).replace("ALGORITHM", repr(algorithm))
    return run(mpi, program, env=env, flags=flags)[1]


@BOTH
def test_a_rank_that_ends(mpi, algorithm):
    output = waitall(mpi, "os._exit(0)", algorithm, flags=LIVE_ON[mpi])
    assert "rank 0: PeerFailure allreduce" in output, output
    assert "rank 1 died" in output, output


def test_a_rank_in_another_call(mpi):
    """The schedule's messages do not tell; the ranks ask each other."""
    output = waitall(mpi, "comm.Barrier(); os._exit(0)", "ring")
    assert "CollectiveMismatch: barrier" in output or "rank 0: CollectiveMismatch" in output, output


@BOTH
def test_a_late_rank_is_reported_once(mpi, algorithm):
    output = waitall(mpi, "time.sleep(5)", algorithm, env={"COLLECTIVES_STALL": "2"})
    assert output.count("on rank 0 of 2: not complete after 2") == 1, output
    assert "waiting for rank 1\n" in output
    assert output.count("complete\n") == 2


def test_a_call_beside_computation_is_not_reported(mpi):
    """A call may last while the program does something else."""
    code, output = run(mpi, """
        if rank == 1:
            time.sleep(5)
        comm.timeout = 2
        request = comm.Iallreduce(np.ones(10), np.ones(10))
        end = time.monotonic() + 6
        while time.monotonic() < end:
            sorted(range(1000), key=lambda i: -i)
        MPI.Request.Waitall([request])
    """, env={"COLLECTIVES_STALL": "2"})  # fmt: skip
    assert code == 0, output
    assert "not complete" not in output


@BOTH
@pytest.mark.parametrize("mpi", ["mpich", "impi"])  # Open MPI does not tell that it waits
def test_timeouts(mpi, algorithm):
    output = waitall(mpi, "MPI.COMM_WORLD.recv()", algorithm, timeout=2)
    assert "rank 0: CollectiveTimeout allreduce" in output, output
    assert "not complete after 2 s; waiting for rank 1\n" in output
    assert "complete\n" not in output


def test_a_call_that_ends_with_an_error_while_it_is_looked_at():
    """The look meets the call's own error, which the wait for the call raises; of a call under way it is no such."""
    watch = Mock(silence=None, look=Mock(side_effect=RuntimeError("its own")))
    context = SimpleNamespace(broken=None, timeout=None)
    Unattended()._judge(context, SimpleNamespace(done=True), watch)
    with pytest.raises(RuntimeError, match="its own"):
        Unattended()._judge(context, SimpleNamespace(done=False), watch)
