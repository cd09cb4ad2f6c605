"""What goes wrong in a running program: errors that name ranks, and an end instead of a hang. On each of the MPIs."""

import re

import pytest
from scripts import ABORT, PREAMBLE, run

DIFFER = "the ranks' calls differ in collective, length, type, op or root"
pytestmark = pytest.mark.in_turn


def test_a_rank_that_does_not_come(mpi):
    """CollectiveTimeout names it; then the communicator is broken, and the program ends although rank 1 never joins."""
    code, output = run(mpi, """
        if rank == 1:
            MPI.COMM_WORLD.recv()  # for ever
        if rank == 0:
            for call in (lambda: comm.Allreduce(np.ones(10), np.ones(10), timeout=0.3, algorithm="ring"),
                         lambda: comm.Allreduce(np.ones(10), np.ones(10)),
                         lambda: comm.Iallreduce(np.ones(10), np.ones(10)), comm.Barrier):
                try:
                    call()
                except collectives.CollectiveTimeout as e:
                    report("timeout", e)
                except collectives.CollectiveError as e:
                    report("error", e)
            comm.Free()
            sys.exit(0)
    """)  # fmt: skip
    assert code != 0
    assert "rank 0: timeout allreduce (ring, 80 bytes) on rank 0 of 2: not complete after 0.3 s; waiting for" in output
    assert "waiting for rank 1\n" in output
    assert output.count("rank 0: error this communicator is broken since an earlier call failed (CollectiveTim") == 3
    assert f"{ABORT}, which might hang: rank 0 of 2: CollectiveTimeout" in output


@pytest.mark.parametrize(
    "call", ["comm.Barrier(", "comm.Barrier(algorithm='mpi', ", "comm.Allreduce(a, b, algorithm='mpi', "]
)
def test_timeouts_of_others(mpi, call):
    code, output = run(mpi, f"""
        a, b = np.ones(10), np.ones(10)
        if rank == 1:
            MPI.COMM_WORLD.recv()
        try:
            {call}timeout=0.3)
        except collectives.CollectiveTimeout as e:
            report("timeout", e)
    """)  # fmt: skip
    assert code != 0
    assert "rank 0: timeout " in output
    assert ABORT in output


def test_a_timeout_on_one_rank_of_a_call_that_mpi_serves(mpi):
    """Its non-blocking collective would wait for ever for the blocking one of the other rank."""
    code, output = run(mpi, """
        if rank == 0:
            comm.timeout = 30
        try:
            comm.Allreduce(np.ones(10), np.ones(10), algorithm="mpi")
        except collectives.CollectiveMismatch as e:
            report("mismatch", e)
            raise
    """)  # fmt: skip
    assert code != 0
    assert "rank 0: mismatch allreduce (mpi) on rank 0 of 2: rank 1 is in another call" in output
    assert "rank 0: call 1, allreduce of 10 float64, SUM (mpi, under a timeout)" in output
    assert "rank 1: call 1, allreduce of 10 float64, SUM (mpi)" in output


def test_default_timeout(mpi):
    """COLLECTIVES_TIMEOUT, of rank 0, holds for blocking calls and waits."""
    code, output = run(mpi, """
        if rank == 1:
            MPI.COMM_WORLD.recv()
        request = comm.Iallreduce(np.ones(10), np.ones(10))
        for call in (request.Wait, request.Wait, request.Test):
            try:
                report("returned", call())
            except collectives.CollectiveError as e:
                report(type(e).__name__, e)
    """, env={"COLLECTIVES_TIMEOUT": "2"})  # fmt: skip
    assert code != 0
    assert "rank 0: CollectiveTimeout allreduce (shm, 80 bytes) on rank 0 of 2: not complete after" in output
    assert output.count("rank 0: CollectiveError this communicator is broken") == 2
    assert "returned" not in output  # a loop on Test ends


@pytest.mark.parametrize("blocking", [True, False])
def test_counts_that_differ(mpi, blocking):
    """The ranks that can see it raise CollectiveMismatch, the others end with them."""
    code, output = run(mpi, f"""
        a = np.ones(10 + rank)
        guard = np.full(100, 7.0)
        b = guard[: 10 + rank]
        try:
            if {blocking}:
                comm.Allreduce(a, b, algorithm="recursive_doubling", timeout=5)
            else:
                MPI.Request.Waitall([comm.Iallreduce(a, b, algorithm="recursive_doubling")])
        except collectives.CollectiveMismatch as e:
            report("mismatch", e)
        except MPI.Exception as e:
            report("mismatch by MPI", e)
        assert (guard[12:] == 7).all()
        try:
            comm.Allreduce(a, a.copy(), timeout=5)
        except collectives.CollectiveError as e:
            report("later", e)
    """)  # fmt: skip
    assert code != 0
    assert "mismatch" in output
    assert "broken since an earlier call failed" in output
    assert ABORT in output
    if blocking:
        assert DIFFER in output


@pytest.mark.parametrize("algorithm", [None, "ring"])
@pytest.mark.parametrize("checked", [True, False])
def test_an_error_that_came_before_the_wait(mpi, algorithm, checked):
    """The next call finds it and is refused; then the wait for the failed call still says what was wrong with that."""
    code, output = run(mpi, f"""
        comm.timeout = 20
        request = comm.Iallreduce(np.ones(10 + rank), np.ones(10 + rank), algorithm={algorithm!r})
        time.sleep(1)
        for call in (lambda: comm.Iallreduce(np.ones(5), np.ones(5)).Wait(), request.Wait):
            try:
                call()
            except collectives.CollectiveError as e:
                report(call.__name__, type(e).__name__)
    """, env={"COLLECTIVES_CHECK": str(int(checked))})  # fmt: skip
    assert code != 0
    assert "rank 0: Wait CollectiveMismatch" in output, output


@pytest.mark.parametrize(
    "calls",
    ["lambda: comm.Allreduce(np.ones(2), np.ones(2)), lambda: comm.Allreduce(np.ones(3), np.ones(3))",
     "lambda: comm.allgather(1), lambda: comm.alltoall([1, 2])"],
)  # fmt: skip
def test_calls_that_differ_on_the_fast_path(mpi, calls):
    code, output = run(mpi, f"""
        for call in ([{calls}][rank], lambda: comm.allgather(1)):
            try:
                call()
            except collectives.CollectiveMismatch as e:
                report("mismatch", e)
            except collectives.CollectiveError as e:
                report("later", e)
    """)  # fmt: skip
    assert code != 0
    assert "mismatch" in output
    assert "broken since an earlier call failed" in output
    assert ABORT in output


LENGTHS_THAT_DIFFER = {
    "allreduce": "comm.Allreduce(np.ones(4 + rank), np.ones(4 + rank))",
    "allgather": "comm.Allgather(np.ones(4 + rank), np.ones((4 + rank) * size))",
    "bcast": "comm.Bcast(np.ones(40 + rank))",
    "another collective": "comm.Bcast(np.ones(40), 0) if rank else comm.Allreduce(np.ones(40), np.ones(40))",
    "allgatherv": "comm.Allgatherv(np.ones(30), [np.ones(40 * size), [30 if i == rank else 40 for i in range(size)]])",
    "gatherv": "comm.Gatherv(np.ones(3), [np.ones(12), [3, 4, 4]] if rank == 0 else None)",
    "alltoallv": "comm.Alltoallv([np.ones(15), [5] * 3], [np.ones(24), [5 + 2 * (i != rank) for i in range(size)]])",
    "alltoallv of shared arrays": "comm.Alltoallv([comm.zeros(9999 * size), [3000] * size],"
    " [comm.zeros(9999 * size), [3000 + (i != rank) for i in range(size)]])",
    "scatterv": "comm.Scatterv([np.ones(30000 * size), [30000] * size] if rank == 0 else None, np.ones(30000 + rank))",
    "reduce_scatter": "comm.Reduce_scatter(np.ones(10), np.ones(4 if rank == size - 1 else 3), [3, 3, 4])"
    " if rank else comm.Reduce_scatter(np.ones(10), np.ones(4), [4, 3, 3])",
}  # fmt: skip


@pytest.mark.quick("allreduce", "another collective", "gatherv", "alltoallv of shared arrays")
@pytest.mark.parametrize("case", LENGTHS_THAT_DIFFER)
def test_lengths_that_differ_on_a_node(case):
    """Whichever way a call goes: some rank sees it, names the call, and its communicator is broken."""
    code, output = run("openmpi", f"""
        try:
            {LENGTHS_THAT_DIFFER[case]}
            comm.Barrier()
        except collectives.CollectiveMismatch as e:
            report("mismatch", e)
            try:
                comm.Barrier()
            except collectives.CollectiveError as e:
                report("later", e)
        except collectives.CollectiveTimeout as e:
            report("timeout", e)
    """, ranks=3, env={"COLLECTIVES_TIMEOUT": "3"})  # fmt: skip
    assert code != 0
    name = "bcast" if "another" in case else case.split()[0].removesuffix("v")
    assert re.search(rf": mismatch {name}v? \(shm, ", output)
    assert output.count("mismatch") == output.count("later this communicator is broken")
    assert ABORT in output


@pytest.mark.parametrize(("other", "told"), [(3, "24 bytes, not 40"), (8, "more than 40 bytes")])
def test_whose_message_is_not_as_long_as_expected(mpi, other, told):
    """By messages over MPI: rank 1 sends rank 2 another number of elements than rank 2 expects."""
    code, output = run(mpi, f"""
        counts = [5, 5, {other} if rank == 1 else 5]
        try:
            comm.Alltoallv([np.ones(sum(counts)), counts], [np.ones(15), [5] * 3], algorithm="pairwise")
            comm.Barrier()
        except collectives.CollectiveError as e:
            report(type(e).__name__, e)
    """, ranks=3, env={"COLLECTIVES_TIMEOUT": "3"})  # fmt: skip
    assert code != 0
    assert f"alltoallv (pairwise, 120 bytes) on rank 2 of 3: {DIFFER}: rank 1 sent a message of {told}" in output


@pytest.mark.quick("ring")
@pytest.mark.parametrize("algorithm", [None, "ring"])
def test_a_timeout_of_a_call_like_earlier_ones(algorithm):
    code, output = run("openmpi", f"""
        a, b = np.ones(10), np.empty(10)
        for _ in range(3):
            comm.Allreduce(a, b, timeout=20, algorithm={algorithm!r})
        for wrong in (-1, "soon"):
            try:
                comm.Allreduce(a, b, timeout=wrong, algorithm={algorithm!r})
            except (TypeError, ValueError) as e:
                report("refused", e)
        comm.Allreduce(a, b, timeout=20, algorithm={algorithm!r})
        if rank == 1:
            time.sleep(5)
        try:
            comm.Allreduce(a, b, timeout=0.3, algorithm={algorithm!r})
        except collectives.CollectiveTimeout as e:
            report(e)
    """)  # fmt: skip
    assert code != 0
    assert output.count("refused timeout: ") == 4
    assert f"allreduce ({algorithm or 'shm'}, 80 bytes) on rank 0 of 2: not complete after 0.3 s; waiting for" in output


def test_a_timeout_behind_another_call(mpi):
    """A blocking call waits for its turn behind a non-blocking one: the ranks that one waits for are named."""
    code, output = run(mpi, """
        if rank == 1:
            MPI.COMM_WORLD.recv()
        request = comm.Iallreduce(np.ones(10), np.ones(10))
        try:
            comm.Bcast(np.ones(10), timeout=0.5)
        except collectives.CollectiveTimeout as e:
            report(e)
    """)  # fmt: skip
    assert code != 0
    assert "bcast (shm, 80 bytes) on rank 0 of 2: not complete after 0.5 s; waiting for rank 1\n" in output


def test_an_exception_on_one_rank(mpi):
    """Wrong arguments raise before anything is sent; the others learn of it by their timeout."""
    code, output = run(mpi, """
        a = np.ones(10)
        if rank == 1:
            try:
                comm.Allreduce(a[::2], a[:5])
            except ValueError as e:
                report("refused", e)
            MPI.COMM_WORLD.recv()
        try:
            comm.Allreduce(a, a.copy(), timeout=0.5, algorithm="recursive_doubling")
        except collectives.CollectiveTimeout as e:
            report(e)
    """, ranks=3)  # fmt: skip
    assert code != 0
    assert "rank 1: refused sendbuf: the array is strided" in output
    assert "waiting for rank 1\n" in output


def test_interrupt(mpi):
    """Ctrl-C while waiting: KeyboardInterrupt, a broken communicator, and the end."""
    code, output = run(mpi, """
        if rank == 1:
            MPI.COMM_WORLD.recv()
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            comm.Allreduce(np.ones(10), np.ones(10))
        except KeyboardInterrupt:
            report("interrupted")
        try:
            comm.Barrier()
        except collectives.CollectiveError as e:
            report("later", e)
    """)  # fmt: skip
    assert code != 0
    assert "rank 0: interrupted" in output
    assert "rank 0: later this communicator is broken since an earlier call failed (KeyboardInterrupt" in output


def test_memory_of_a_failed_run_stays(mpi):
    """Messages that come late are written into buffers that nobody holds any more."""
    code, output = run(mpi, """
        import gc
        n = 200_000
        if rank == 1:
            time.sleep(1)
        def call():
            a = np.ones(n)
            comm.Allreduce(MPI.IN_PLACE, a, algorithm="ring", timeout=0.3 if rank == 0 else 5)
        try:
            call()
        except collectives.CollectiveError as e:
            report(type(e).__name__)
        comm = None
        gc.collect()
        other = [np.zeros(n) for _ in range(20)]
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            MPI.COMM_WORLD.Iprobe()
            assert not any(x.any() for x in other)
        report("clean")
    """)  # fmt: skip
    assert code != 0
    assert "rank 0: CollectiveTimeout" in output
    assert "rank 0: clean" in output


def test_lower_thread_levels(mpi):
    """Without THREAD_MULTIPLE, blocking calls are ours and non-blocking ones MPI's."""
    for level in ("single", "funneled", "serialized"):
        preamble = f"import mpi4py\nmpi4py.rc.thread_level = {level!r}\n" + PREAMBLE
        code, output = run(mpi, """
            assert MPI.Query_thread() < MPI.THREAD_MULTIPLE
            a = np.ones(1000)
            comm.Allreduce(MPI.IN_PLACE, a, algorithm="ring")
            assert (a == size).all() and comm.last.algorithm == "ring"
            comm.Iallreduce(MPI.IN_PLACE, a).Wait()
            assert (a == size**2).all() and comm.last.algorithm == "mpi"
            for arguments, options in (((np.ones(3),), dict(algorithm="ring")), ((np.ones(3, "f2"),), {}),
                                       ((np.ones(3), collectives.AVG), {})):
                try:
                    comm.Iallreduce(MPI.IN_PLACE, *arguments, **options)
                except (ValueError, TypeError) as e:
                    report(e)
            try:
                plan = comm.Allreduce_init(MPI.IN_PLACE, a)
            except NotImplementedError:  # MPI 3
                plan = None
            if plan is not None:
                plan.Start()
                plan.Wait()
                assert (a == size**3).all()
                plan.Free()
            report("fine")
        """, preamble=preamble)  # fmt: skip
        assert code == 0, output
        assert output.count("fine") == 2
        assert output.count("THREAD_MULTIPLE") == 6


def test_a_failing_user_defined_op_ends_the_program(mpi):
    """As with mpi4py: an exception in an op has nowhere to go but to all ranks."""
    code, output = run(mpi, """
        op = MPI.Op.Create(lambda a, b, datatype: 1 / 0)
        comm.Allreduce(MPI.IN_PLACE, np.ones(3), op)
    """)  # fmt: skip
    assert code != 0
    if mpi != "mpich":  # whose launcher may drop what it has not read of a job that is aborted
        assert "Traceback" in output
