"""Timelines of ranks that fail, or do not end together: none waits for ever, and what each has recorded stays."""

import re

import pytest
from jobs import LIVE_ON, mpiexec

from collectives.cli.commands import main
from collectives.trace import perfetto

APART = """
import sys, time
import numpy as np
from mpi4py import MPI
import collectives
from collectives.system import lifetime

path, case = sys.argv[1:]
comm = collectives.Communicator(MPI.COMM_WORLD)
part = comm.Split(min(comm.rank, 1))
x, y = np.ones(1), np.empty(1)
try:
    with comm.trace(path) as timeline:
        comm.Allreduce(x, y)
        part.Barrier()
        if case == "raises" and comm.rank == 1:
            raise KeyError("planted")
        if case == "raises at the root" and comm.rank == 0:
            raise KeyError("planted")
        if case == "broken" and comm.rank == 1:
            try:
                part.Barrier(timeout=0.1)
            except collectives.CollectiveTimeout:
                pass
        if case.startswith("late"):
            comm.timeout = 0.5
            time.sleep(2 * (comm.rank == int(case[-1])))
        begin = time.monotonic()
    assert time.monotonic() - begin < 1.9, "waited for long"
except KeyError as e:
    assert case.startswith("raises"), e
comm.timeout = 30
comm.Allreduce(x, y)
assert timeline.comm != MPI.COMM_NULL
comm.Dup().Free()  # frees what each rank had left
assert timeline.comm == MPI.COMM_NULL
assert not lifetime.dead()
if case != "broken":
    with comm.trace(path + ".again") as timeline:
        comm.Allreduce(x, y)
    assert timeline.comm == MPI.COMM_NULL
print("went on", flush=True)
"""


@pytest.mark.in_turn
@pytest.mark.parametrize("case", ["raises", "raises at the root", "late 1", "late 0", "broken"])
def test_ranks_that_do_not_end_together(mpi, case, tmp_path):
    """All leave their parts, nobody waits for ever, and the program goes on."""
    path = tmp_path / "t.json"
    done = mpiexec(mpi, 3, "-c", APART, str(path), case, timeout=60)
    assert done.stdout.count("went on") == 3, done.stdout + done.stderr
    parts = [f"t.json.rank{rank}.part" for rank in range(3)]
    again = ["t.json.again"] if case != "broken" else []
    assert sorted(file.name for file in tmp_path.iterdir()) == again + parts
    assert "each rank leaves its part instead" in done.stderr
    if case.startswith("late"):
        late = case[-1]
        assert re.search(f"ending a timeline on rank . of 3: .*waiting for rank {late}", done.stderr), done.stderr
    if case != "broken":
        assert done.returncode == 0, done.stderr
    assert main(["trace", str(path)]) == 0


DIES = """
import os, signal, sys, time
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)
with comm.trace(sys.argv[1]):
    comm.Barrier()
    if comm.rank == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
print("went on", flush=True)
MPI.COMM_WORLD.Abort(3)
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies(rank, tmp_path):
    path = tmp_path / "t.json"
    done = mpiexec("openmpi", 2, "-c", DIES, str(path), str(rank), timeout=60, flags=LIVE_ON["openmpi"])
    assert done.stdout.count("went on") == 1, done.stdout + done.stderr
    assert [file.name for file in tmp_path.iterdir()] == [f"t.json.rank{1 - rank}.part"]
    assert re.search(f"leaves its part instead: ending a timeline on rank {1 - rank} of 2: .*rank {rank}", done.stderr)


FAILS = """
import sys
from mpi4py import MPI
import collectives
from collectives.arguments.signature import Call
from collectives.waiting.mpi_calls import MPIRun

_, name, planted = sys.argv
comm = collectives.Communicator(MPI.COMM_WORLD)
comm.Barrier()
context = comm._context

def wrong(*_):
    raise ZeroDivisionError("planted")

if comm.rank == 1:
    if planted == "wrong":
        context.timeline.note = wrong
    try:
        context.fail(MPIRun(name, Call(2, name, "", 0, "", "", None)), collectives.CollectiveTimeout("late"))
    except collectives.CollectiveTimeout as e:
        print("raised", str(e).splitlines()[0], context.broken, flush=True)
else:
    try:
        comm.Barrier(timeout=20)
    except collectives.CollectiveError as e:
        print("heard", str(e).splitlines()[0], flush=True)
"""


@pytest.mark.parametrize("planted", ["right", "wrong"])
def test_a_failure_that_is_no_collective(planted, tmp_path):
    """The program sees its own error, and the other rank hears of it, whether or not the timeline can have it."""
    path, name = tmp_path / "t.json", "creating a communicator by Split"
    done = mpiexec("openmpi", 2, "-c", FAILS, name, planted, timeout=60, env={"COLLECTIVES_TRACE": str(path)})
    assert "raised late CollectiveTimeout: late" in done.stdout, done.stdout + done.stderr
    assert re.search("heard .*: rank 1 gave up at .*: CollectiveTimeout: late", done.stdout), done.stdout + done.stderr
    assert path.with_name("t.json.rank1.part").exists()
    assert main(["trace", str(path)]) == 0
    events, _ = perfetto.read(path)
    failed = [e["args"]["failed"] for e in events if e["name"] == name]
    assert failed == (["CollectiveTimeout: late"] if planted == "right" else [])
    assert ("may lack a call that failed: ZeroDivisionError: planted" in done.stderr) == (planted == "wrong")
