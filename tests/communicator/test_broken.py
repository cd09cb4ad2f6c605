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
