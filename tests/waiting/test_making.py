"""Ranks that are late, slow or away where a communicator is made. On each of the MPIs."""

import pytest
from scripts import PREAMBLE, run

pytestmark = pytest.mark.in_turn


@pytest.mark.parametrize("late", [1, 1.5])
def test_a_first_communicator_that_times_out(mpi, late):
    """The program ends, too, where the late rank comes as the other gives up, and is in MPI's call alone."""
    code, output = run(mpi, f"""
        MPI.COMM_WORLD.Barrier()  # the start of a process may take as long as the other waits
        if rank == 1:
            time.sleep({late})
        collectives.Communicator(MPI.COMM_WORLD)
        report("made it")
    """, env={"COLLECTIVES_TIMEOUT": "1"}, preamble=PREAMBLE.rpartition("comm = ")[0])  # fmt: skip
    if "made it" not in output or late > 1:
        assert code != 0
        assert "CollectiveTimeout: creating a Communicator on rank 0 of 2: not complete after 1 s" in output


def test_ranks_that_set_up_a_communicator_may_be_slow(mpi):
    """Once all have come: where one gave up, the others would have a communicator without it."""
    code, output = run(mpi, """
        from collectives.runtime import bootstrap
        hello = bootstrap.hello

        def late(*args):
            time.sleep([0, 0.3, 0.6][rank])
            return hello(*args)

        bootstrap.hello = late
        MPI.COMM_WORLD.Barrier()
        for _ in range(100):
            try:
                comm = collectives.Communicator(MPI.COMM_WORLD)
                break
            except collectives.CollectiveTimeout:
                pass
        comm.timeout = 5
        report("together", int(comm.allreduce(1)))
    """, ranks=3, env={"COLLECTIVES_TIMEOUT": "0.2"}, preamble=PREAMBLE.rpartition("comm = ")[0])  # fmt: skip
    assert code == 0, output
    assert output.count("together 3") == 3, output


def test_a_rank_that_still_makes_its_communicator(mpi):
    """It answers those that were faster: not yet in a collective."""
    code, output = run(mpi, """
        from collectives.runtime.mpi_context import MPIContext
        join = MPIContext.join
        def slow(*arguments):
            join(*arguments)
            time.sleep(rank)
        MPIContext.join = slow
        another = collectives.Communicator(MPI.COMM_WORLD)
        try:
            another.Barrier(timeout=0.3)
        except collectives.CollectiveTimeout as e:
            report(e)
    """)  # fmt: skip
    assert code != 0
    assert "  rank 1: in no collective of this communicator, after 0 calls, at <string>:1" in output
    assert "Exception in thread" not in output
