"""What fails on one rank at the end of a call, or between its steps: no rank waits in vain, and no error is lost."""

import pytest
from scripts import run

FAILS = """
from collectives.arguments.packing import Packed
store = Packed.store
def fails(self):
    raise MemoryError("no room for the result")
comm.timeout = 20
"""


def test_a_result_that_one_rank_cannot_store():
    """The error comes at each wait, also if another call has noticed the end before; the communicator goes on."""
    code, output = run("openmpi", FAILS + """
for noticed in False, True:
    if rank == 0:
        Packed.store = fails
    request = comm.Ireduce_scatter_block(MPI.IN_PLACE, np.ones(4 * size))
    time.sleep(0.5)
    Packed.store = store
    if noticed:
        comm.Barrier()
    for again in False, True:
        try:
            request.Wait()
        except MemoryError as e:
            report(noticed, again, e)
    comm.Barrier()
report("goes on")
""")  # fmt: skip
    assert code == 0, output
    for noticed in False, True:
        for again in False, True:
            assert output.count(f"rank 0: {noticed} {again} no room for the result") == 1, output
    assert output.count("goes on") == 2, output


@pytest.mark.parametrize("options", ["", "algorithm='ring'", "algorithm='ring', engine='python'"])
def test_a_blocking_call_whose_result_one_rank_cannot_store(options):
    """All data have come: no rank waits for it."""
    code, output = run("openmpi", FAILS + f"""
if rank == 0:
    Packed.store = fails
try:
    comm.Reduce_scatter_block(MPI.IN_PLACE, np.ones(4 * size), {options})
except MemoryError as e:
    report(e)
Packed.store = store
comm.Barrier()
report("goes on")
""")  # fmt: skip
    assert code == 0, output
    assert output.count("rank 0: no room for the result") == 1, output
    assert output.count("goes on") == 2, output


def test_an_interrupt_while_another_call_ends():
    """The function at the end of that call runs in the main thread, which waits for a barrier."""
    code, output = run("openmpi", FAILS + """
other = comm.Dup()
def interrupted(self):
    os.kill(os.getpid(), signal.SIGINT)
    store(self)
if rank == 0:
    Packed.store = interrupted
else:
    time.sleep(0.5)
request = comm.Ireduce_scatter_block(MPI.IN_PLACE, np.ones(4 * size))
try:
    other.Barrier()
    time.sleep(5)
    report("not interrupted")
except KeyboardInterrupt:
    report("interrupted")
os._exit(0)
""")  # fmt: skip
    assert output.count("rank 0: interrupted") == 1, output


def test_vectors_of_a_reduce_scatter_without_counts_that_differ_in_length():
    """The ranks tell each other the counts first: all of them raise, and can go on."""
    code, output = run("openmpi", """
        try:
            comm.Reduce_scatter(np.ones(8 if rank else 7), np.empty(4))
        except ValueError as e:
            report(e)
        comm.Barrier()
        result = np.empty(4)
        comm.Reduce_scatter(np.ones(8), result)
        report(result)
    """)  # fmt: skip
    assert code == 0, output
    for rank in range(2):
        assert f"rank {rank}: sendbuf of rank 0 has 7 elements, the ranks' recvbufs 8" in output, output
        assert f"rank {rank}: [2. 2. 2. 2.]" in output, output


@pytest.mark.in_turn
def test_a_checked_call_of_mpi_keeps_its_buffers_after_a_mismatch(mpi):
    """MPI may still write what has begun to move."""
    code, output = run(mpi, """
        import gc, weakref
        array = np.ones(6)
        held = weakref.ref(array)
        request = comm.Ibcast(array.view("f8" if rank else "i8"), 0, algorithm="mpi")
        try:
            request.Wait()
        except collectives.CollectiveMismatch:
            pass
        del array, request
        gc.collect()
        report("kept:", held() is not None)
        MPI.COMM_WORLD.Barrier()  # launchers kill the others of a rank that ends so
        os._exit(0)
    """, env={"COLLECTIVES_CHECK": "1"})  # fmt: skip
    assert output.count("kept: True") == 2, output
