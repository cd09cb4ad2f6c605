"""Calls that cannot begin: nothing starts on a broken communicator, and other ranks do not wait in vain."""

import pytest
from scripts import run


@pytest.mark.in_turn
def test_a_persistent_call_of_mpi_does_not_start(mpi):
    """A request that was not started is complete for MPI."""
    code, output = run(mpi, """
        request = comm.Allreduce_init(np.ones(3), np.ones(3), algorithm="mpi")
        if rank == 0:
            try:
                comm.Barrier(timeout=0.2)
            except collectives.CollectiveTimeout:
                pass
            try:
                request.Start()
            except collectives.CollectiveError as e:
                report(f"({e})", MPI.Request.Test(request))
            MPI.COMM_WORLD.send(None, 1)
        else:
            MPI.COMM_WORLD.recv(source=0)
        os._exit(0)
    """)  # fmt: skip
    assert "this communicator is broken since an earlier call failed" in output, output
    assert ") True\n" in output, output


def test_a_checked_call_that_cannot_begin_is_given_up():
    """The other ranks have compared their calls with it, and wait for it."""
    code, output = run("openmpi", """
        def interrupt(*_):
            raise KeyboardInterrupt
        for algorithm in "ring", None:
            comm = collectives.Communicator(MPI.COMM_WORLD)
            comm.timeout = 20
            if rank == 0:
                comm._queue = interrupt
            try:
                comm.Iallreduce(np.ones(10), np.ones(10), algorithm=algorithm).Wait()
            except (KeyboardInterrupt, collectives.CollectiveError) as e:
                report(type(e).__name__, e)
            MPI.COMM_WORLD.Barrier()
        os._exit(0)
    """, env={"COLLECTIVES_CHECK": "1"})  # fmt: skip
    assert output.count("rank 1: CollectiveError") == output.count("rank 0: KeyboardInterrupt") == 2, output
    assert output.count("rank 0 gave up at") == 2, output


@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_the_timeout_of_a_call_bounds_the_exchange_of_its_counts(algorithm):
    code, output = run("openmpi", f"""
        comm = collectives.Communicator(MPI.COMM_WORLD)
        comm.timeout = 60
        try:
            if rank == 0:
                comm.Reduce_scatter(np.ones(4), np.ones(2), timeout=0.3, algorithm={algorithm!r})
        except collectives.CollectiveTimeout as e:
            report("late", e)
        time.sleep(2)
        os._exit(0)
    """)  # fmt: skip
    assert "rank 0: late allgather" in output, output
    assert "not complete after 0.3 s" in output, output


def test_what_the_program_set_is_not_for_calls_of_the_library():
    """Here the exchange of checks: no all-gather on one node can be hierarchical."""
    code, output = run("openmpi", """
        comm = collectives.Communicator(MPI.COMM_WORLD)
        comm.Barrier()
        report("done")
    """, env={"COLLECTIVES_CHECK": "1", "COLLECTIVES_ALGORITHM": "allgather=hierarchical"})  # fmt: skip
    assert code == 0, output
    assert output.count("done") == 2, output
