"""After a rank died: the survivors go on where the MPI lets them, and learn why not elsewhere."""

import re
import textwrap

import pytest
from scripts import run

ULFM = ("--with-ft", "ulfm")

#: All collectives on the communicator of the survivors, results checked; then an orderly end.
AFTERWARDS = """
new = comm.shrink()
assert type(new) is collectives.Communicator and new.size == size - 1, new
members = new.allgather(rank)
assert members == [r for r in range(size) if r != victim], members
n, total = new.size, float(sum(members))
for words in ({}, {"algorithm": "ring"}, {"algorithm": "mpi"}):
    for length in (1, 1000, 300_000):
        x, y = np.full(length, float(rank)), np.empty(length)
        new.Allreduce(x, y, **words)
        assert (y == total).all()
for length in (1, 50_000):
    x, y = np.full(length, float(rank)), np.empty((n, length))
    new.Allgather(x, y)
    assert (y == np.array(members)[:, None]).all()
    new.Alltoall(np.full((n, length), float(rank)), y)
    assert (y == np.array(members)[:, None]).all()
    new.Bcast(x, 0)
    assert (x == members[0]).all()
    new.Reduce(np.ones(length), x, root=n - 1)
    assert new.rank < n - 1 or (x == n).all()
    new.Reduce_scatter_block(np.ones((n, length)), x)
    assert (x == n).all()
    new.Gather(np.full(length, float(rank)), y, 0)
    new.Scatter(y, x, 0)
    assert (x == rank).all()
    new.Scan(np.ones(length), x)
    assert (x == new.rank + 1).all()
    new.Exscan(np.ones(length), x)
    assert new.rank == 0 or (x == new.rank).all()
request = new.Iallreduce(MPI.IN_PLACE, x)
request.Wait()
new.Dup().Barrier()
try:
    comm.Barrier()
except collectives.CollectiveError as e:
    report("old:", e)
report("went on")
"""

SITUATIONS = {
    "idle": """
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
    """,
    "in a collective": """
        if rank == victim:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.Allreduce(np.ones(50_000), np.ones(50_000), timeout=10, algorithm=ALGORITHM)
        except collectives.CollectiveError as e:
            report(type(e).__name__, e)
    """,
    "in a request": """
        request = comm.Iallreduce(np.ones(50_000), np.ones(50_000), algorithm=ALGORITHM) if rank != victim else None
        if rank == victim:
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            request.Wait()
        except collectives.CollectiveError as e:
            report(type(e).__name__, e)
    """,
}


@pytest.mark.quick("idle-any", "in a collective-shm", "in a request-ring")
@pytest.mark.parametrize(
    ("situation", "algorithm"),
    [("idle", "any"), ("in a collective", "shm"), ("in a collective", "ring"), ("in a request", "shm"),
     ("in a request", "ring")],
)  # fmt: skip
def test_survivors_go_on(situation, algorithm):
    watch = "import faulthandler\nfaulthandler.dump_traceback_later(40, exit=True)\n"  # where it hangs, if it does
    program = watch + f"victim, ALGORITHM = 2, {algorithm!r}\n" + textwrap.dedent(SITUATIONS[situation]) + AFTERWARDS
    _, output = run("openmpi", program, ranks=4, env={"COLLECTIVES_TIMEOUT": "20"}, flags=ULFM)
    assert output.count("went on") == 3, output
    assert output.count("old: this communicator is broken") == 3
    assert "MPI_Abort" not in output
    if situation != "idle":
        assert len(re.findall(r"^rank \d: PeerFailure", output, re.MULTILINE)) == 3, output


CALLS = {
    "shm": "comm.Allreduce(np.ones(1000), np.ones(1000))",
    "ring": "comm.Allreduce(np.ones(100), np.ones(100), algorithm='ring')",
    "served by MPI": "comm.Allreduce(np.ones(100), np.ones(100), algorithm='mpi')",
    "request": "comm.Iallreduce(np.ones(1000), np.ones(1000)).Wait()",
    "object": "comm.allreduce(1)",
    "dup": "comm.Dup()",
}


@pytest.mark.quick("shm", "request", "served by MPI")
@pytest.mark.parametrize("call", CALLS)
def test_others_hear_of_revoke(call):
    program = f"""
        comm.Barrier()
        if rank == 0:
            time.sleep(0.3)
            comm.Revoke()
        begin = time.monotonic()
        try:
            {CALLS[call]}
        except collectives.CollectiveError as e:
            assert time.monotonic() - begin < 5, e
            report(e)
        comm.Revoke()
        new = comm.Shrink()
        assert new.allreduce(1) == new.size == 3
        report("went on")
    """
    code, output = run("openmpi", program, ranks=3, env={"COLLECTIVES_TIMEOUT": "20"}, flags=ULFM)
    assert output.count("went on") == 3, output
    assert "MPI_Abort" not in output
    assert code == 0, output
    assert "rank 0: this communicator is broken" in output
    told = re.findall(
        r"^rank \d: .* on rank \d of 3: rank 0 gave up at \S+: CollectiveError: .* was revoked$", output, re.M
    )
    assert len(told) == 2, output


def test_requests_after_shrink_that_nobody_waits_for():
    """The end of the program waits for them, as it does where nothing failed."""
    code, output = run("openmpi", """
        comm.Barrier()
        comm.Revoke()
        new = comm.shrink()
        request = new.Iallreduce(np.ones(1000), np.empty(1000), algorithm="ring")
        if rank == 0:
            time.sleep(0.5)
        report("ends")
    """, flags=ULFM)  # fmt: skip
    assert output.count("ends") == 2, output
    assert "MPI_Abort" not in output
    assert code == 0, output


def test_shrink_without_survivors_is_mpis_own(mpi):
    code, output = run(mpi, """
        new = comm.Shrink()
        assert type(new) is collectives.Communicator and new.allreduce(1) == new.size
        report("shrunk")
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("shrunk") == 2, output


def test_where_the_launcher_ends_the_job(mpi):
    code, output = run(mpi, """
        try:
            comm.shrink()
        except collectives.CollectiveError as e:
            report(e)
        comm.Barrier()
    """)  # fmt: skip
    assert code == 0, output
    assert output.count("no communicator of survivors: this launcher ends the job when a rank dies") == 2
    assert "--with-ft ulfm" in output


def test_the_program_goes_on_after_mpi_finalize():
    """MPI_Finalize is ended after 5 s if it hangs, and with it the process; one that has returned is left alone."""
    code, output = run("openmpi", """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.Barrier()
        except collectives.PeerFailure:
            comm.shrink().Barrier()
        MPI.Finalize()
        time.sleep(6.5)
        report("went on")
    """, ranks=3, flags=ULFM)  # fmt: skip
    assert output.count("went on") == 2, output
    assert code == 0, output


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_death_within_mpi_finalize(seed):
    """Its last fence may wait for the dead rank for ever, of which nobody has heard when it begins."""
    code, output = run("openmpi", f"""
        import random
        comm.Barrier()
        if rank == 1:
            signal.setitimer(signal.ITIMER_REAL, random.Random({seed}).uniform(0.001, 0.08))
        report("ends")
    """, ranks=5, flags=ULFM)  # fmt: skip
    assert output.count("ends") >= 4, output
    assert code == 0, output
