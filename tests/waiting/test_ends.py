"""The end of a program: requests that nobody waited for, MPI_Finalize, and forked children. On each of the MPIs."""

import pytest
from scripts import ABORT, run

pytestmark = pytest.mark.in_turn


def test_outstanding_at_the_end(mpi):
    """Requests that nobody waited for are completed before MPI_Finalize."""
    code, output = run(mpi, """
        a = np.ones(100_000)
        time.sleep(rank / 2)
        requests = [comm.Iallreduce(MPI.IN_PLACE, a.copy()) for _ in range(5)]
        report("done")
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("done") == 2


def test_finalize_with_requests_outstanding(mpi):
    code, output = run(mpi, """
        if rank == 1:
            MPI.COMM_WORLD.recv()
        request = comm.Iallreduce(np.ones(3), np.ones(3))
        MPI.Finalize()
    """)  # fmt: skip
    assert code != 0
    assert f"{ABORT}, which might hang: 1 non-blocking collective" in output


def test_after_finalize(mpi):
    code, output = run(mpi, """
        plan = comm.Allreduce_init(np.ones(3), np.ones(3))
        for _ in range(3):
            plan.Start()
            plan.Wait()
        MPI.Finalize()
        for call in (lambda: comm.Allreduce(np.ones(3), np.ones(3)), lambda: comm.Iallreduce(np.ones(3), np.ones(3)),
                     plan.Start, comm.Barrier):
            try:
                call()
            except collectives.CollectiveError as e:
                report(e)
        del comm, plan
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("MPI has been finalized") == 8


def test_fork_while_the_progress_thread_calls_python(mpi):
    """The thread holds its own lock and waits for Python's, which the forking thread has."""
    code, output = run(mpi, """
        op = MPI.Op.Create(lambda a, b, datatype: time.sleep(0.002), commute=True)
        for _ in range(20):
            requests = [comm.Iallreduce(MPI.IN_PLACE, np.ones(3), op) for _ in range(5)]
            for _ in range(5):
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
            MPI.Request.Waitall(requests)
        report("done")
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("done") == 2


def test_exit_in_a_forked_child(mpi):
    """A child that ends by sys.exit runs Python's exit functions; they leave the parent's collectives alone."""
    code, output = run(mpi, """
        request = comm.Iallreduce(MPI.IN_PLACE, np.ones(300_000))
        child = os.fork()
        if child == 0:
            import atexit
            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        request.Wait()
        comm.Barrier()
        report("done")
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("done") == 2
