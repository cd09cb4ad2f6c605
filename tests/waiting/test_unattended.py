"""Non-blocking calls that only MPI waits for (Waitall): what is found, reported and ended, on each of the MPIs."""

import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from jobs import LIVE_ON
from scripts import run

from collectives.errors import PeerFailure
from collectives.waiting.unattended import Unattended, _judge

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
#: For a rank that waits in MPI for ever: MPICH's launcher does not always end it when the other has left.
BOUNDED = "threading.Timer(20, os._exit, (0,)).start()"


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
    assert len(re.findall(r"on rank 0 of 2: not complete after [2-4]", output)) == 1, output  # on busy cores later
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
    output = waitall(mpi, f"{BOUNDED}; MPI.COMM_WORLD.recv()", algorithm, timeout=2)
    assert "rank 0: CollectiveTimeout allreduce" in output, output
    assert "not complete after 2 s; waiting for rank 1\n" in output
    assert "complete\n" not in output


@pytest.mark.parametrize("mpi", ["mpich", "impi"])
@pytest.mark.parametrize("wait", ["Waitall([b, a])", "Waitany([a])", "Waitsome([a])", "Wait(b)"])
def test_every_wait_of_mpi_has_the_timeout(mpi, wait):
    """The call that MPI waits for need not be the oldest, and MPI tests the requests in some of its waits."""
    output = run(mpi, f"""
        comm.timeout = 2
        if rank == 1:
            MPI.COMM_WORLD.recv()
        a, b = (comm.Iallreduce(np.ones(10), np.ones(10)) for _ in range(2))
        try:
            MPI.Request.{wait}
        except MPI.Exception:
            os._exit(1)
    """)[1]  # fmt: skip
    assert "CollectiveTimeout: allreduce" in output, output


@pytest.mark.parametrize("mpi", ["mpich", "impi"])  # with ULFM, MPI itself tells of the death, before any look
def test_the_error_is_logged_before_mpi_returns(mpi):
    """The program may end as soon as MPI's wait does."""
    output = run(mpi, """
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if rank == 1:
            time.sleep(1)
            os._exit(0)
        try:
            MPI.Request.Waitall([comm.Iallreduce(np.ones(10), np.ones(10))])
        except MPI.Exception:
            os._exit(0)
    """, flags=LIVE_ON[mpi])[1]  # fmt: skip
    assert "rank 1 died" in output, output


def test_a_call_that_begins_while_another_thread_gives_up(mpi):
    """The thread did not know of the call, which must end all the same."""
    code, output = run(mpi, """
        context, made = comm._enter(), []
        make = context.operation
        def operation(*arguments):
            made.append(make(*arguments))
            context.broken = "another thread has given up the calls that it knew"
            return made[0]
        if rank == 0:
            context.operation = operation
            try:
                comm.Iallreduce(np.ones(10), np.ones(10), algorithm="ring")
            except collectives.CollectiveError:
                report("ended", made[0].done, type(made[0].error()).__name__)
        MPI.COMM_WORLD.Barrier()
        os._exit(0)
    """)  # fmt: skip
    assert "rank 0: ended True GivenUpError" in output, output


def test_checked_calls_do_not_differ_from_their_checks(mpi):
    """A rank may wait for the comparison of the ranks' calls, and another one for the call itself."""
    code, output = run(mpi, """
        from collectives.arguments.signature import differ
        if rank == 1:
            time.sleep(1)
        request = comm.Iallreduce(np.ones(10), np.ones(10), algorithm="ring")
        if rank == 0:
            one, other = (operation.call() for operation in comm._enter().pending())
            report(one.number == other.number, differ(one, other))
        MPI.Request.Waitall([request])
    """, env={"COLLECTIVES_CHECK": "1"})  # fmt: skip
    assert code == 0, output
    assert "rank 0: True False" in output, output


def looked_at(error, changes=()):
    """What became of a call whose look raises ``error``, and has seen ``changes``: its context, and the operation."""
    operation = SimpleNamespace(done=False, begin=1, failure=None, withdraw=Mock(), error=Mock(return_value=error))
    context = Mock(broken=None)

    def look(_):
        vars(operation).update(changes)
        raise error

    _judge(context, operation, Mock(look=look))
    return context, operation


def test_a_call_that_ends_with_an_error_while_it_is_looked_at():
    """The look meets the call's own error, which the wait for the call raises; of a call under way it is no such."""
    for error in RuntimeError("its own"), ValueError("its own"):
        context, _ = looked_at(error, {"done": True})
        context.note.assert_not_called()
        with pytest.raises(type(error), match="its own"):
            looked_at(error)


def test_a_call_that_is_over_when_its_error_is_found():
    """A persistent request may have been started again, and a call may complete at the last moment."""
    error = PeerFailure("rank 1 died")
    context, operation = looked_at(error)
    context.note.assert_called_once_with(operation, error)
    for changes in {"begin": 2}, {"error": Mock(return_value=None)}:
        context, _ = looked_at(error, changes)
        context.note.assert_not_called()


def test_threads_that_cannot_be_started(monkeypatch):
    """The next look tries again."""
    unattended = Unattended()
    unattended._watches = {(None, 0): Mock()}
    for failure in RuntimeError("can't start new thread"), None:
        start = Mock(side_effect=failure)
        monkeypatch.setattr("threading.Thread.start", start)
        unattended.look()
        start.assert_called_once()
