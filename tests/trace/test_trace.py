"""Timelines: what is recorded, when, on whose clock, and what is said of it; of jobs on each MPI."""

import json
import re
import subprocess
import sys

import pytest
from jobs import ROOT, mpiexec

from collectives.cli.commands import main
from collectives.trace import perfetto, report

PROGRAM = ROOT / "tests/trace/programs/traced.py"
LINES = PROGRAM.read_text().splitlines()
LATE = next(i for i, line in enumerate(LINES, 1) if "rank 1 is late here" in line)


def record(path, mpi, ranks, *parts, env=None, run=()):
    """Run the parts of the program, recorded; the events and what the file says of itself."""
    done = mpiexec(
        mpi, ranks, *run, str(PROGRAM), *parts, timeout=60, env={"COLLECTIVES_TRACE": str(path), **(env or {})}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return perfetto.read(path)


def made(events, rank, form=None):
    """A rank's calls in order of time."""
    mine = [e for e in events if e["pid"] == rank and "work_us" in e.get("args", {})]
    return sorted((e for e in mine if form in (None, e["args"]["form"])), key=lambda e: e["ts"])


@pytest.mark.in_turn
def test_every_call_of_every_rank_once_in_order(mpi, tmp_path):
    ranks = 3 if mpi == "openmpi" else 2
    events, about = record(tmp_path / "t.json", mpi, ranks, "blocking", "every_collective", "overlapped")
    expected = ["allreduce"] * 5 + [
        "barrier", "bcast", "reduce", "gather", "scatter", "allgather", "alltoall", "scan", "exscan",
        "reduce_scatter_block", "allgatherv", "reduce_scatter", *["allreduce"] * 3, "allreduce", "bcast",
    ]  # fmt: skip
    for rank in range(ranks):
        found = made(events, rank, "blocking")
        assert [e["name"] for e in found] == expected
        numbers = [e["args"]["call"] for e in found]
        assert numbers == list(range(1, len(expected) + 1))
        assert [e["args"]["algorithm"] for e in found[-5:]] == ["ring", "ring", "mpi", "shm", "shm"]
        assert [e["args"]["bytes"] for e in found[:5]] == [8] * 5
        assert found[-2]["args"]["bytes"] == 16  # two calls in one
        assert len(made(events, rank, "non-blocking")) == 2
        starts = [(e["args"]["request"], e["args"]["call"]) for e in made(events, rank, "persistent")]
        assert starts == [(request, start) for request in range(3) for start in range(2)]
        for e in found:
            assert 0 <= e["ts"] <= e["ts"] + e["dur"] <= about["seconds"] * 1e6
    assert about["missing_ranks"] == []
    assert [rank["rank"] for rank in about["rank"]] == list(range(ranks))
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [re.fullmatch(r"rank (\d) \(\S+\)", name)[1] for name in names] == [str(rank) for rank in range(ranks)]


def test_slices_of_a_thread_are_nested(tmp_path):
    events, _ = record(tmp_path / "t.json", "openmpi", 2, "blocking", "every_collective", "overlapped")
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) > 50
    for rank in range(2):
        open_until = []
        for e in sorted((e for e in slices if e["pid"] == rank), key=lambda e: (e["ts"], -e["dur"])):
            end = e["ts"] + e["dur"]
            while open_until and open_until[-1] <= e["ts"] + 0.002:
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 0.002, e
            open_until.append(end)


@pytest.mark.in_turn
def test_the_straggler_is_named_with_the_line(mpi, tmp_path):
    path = tmp_path / "t.json"
    events, about = record(path, mpi, 2, "blocking")
    third = [made(events, rank)[2] for rank in range(2)]
    assert third[0]["args"]["wait_us"] >= 190_000
    assert third[0]["args"]["waited_for"] == 1
    assert third[1]["args"]["wait_us"] == 0
    assert third[1]["args"]["late_us"] >= 190_000
    for e in third:
        assert e["args"]["caller"] == f"{PROGRAM}:{LATE} blocking"
        assert e["args"]["wait_us"] + e["args"]["work_us"] == pytest.approx(e["dur"], abs=0.01)
    arrivals = [e["ts"] for e in third]
    assert arrivals[1] - arrivals[0] == pytest.approx(third[0]["args"]["wait_us"], abs=0.01)
    (row,) = report.rows(events)
    assert (row.name, row.algorithm, row.calls, row.parts, row.nbytes) == ("allreduce", "shm", 5, 10, 80)
    assert row.straggler[0] == 1
    assert third[1]["args"]["late_us"] in row.straggler[1]
    done = subprocess.run(
        [sys.executable, "-m", "collectives", "trace", str(path)], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout == report.table(events, about) + "\n"
    place = f"tests/trace/programs/traced.py:{LATE}"
    assert re.search(rf"^allreduce +shm +5 +8 .* rank 1 .* {place}$", done.stdout, re.MULTILINE)


def test_calls_under_way_overlap_with_what_the_program_does(tmp_path):
    events, _ = record(tmp_path / "t.json", "openmpi", 2, "overlapped")
    for rank in range(2):
        mine = [e for e in events if e["pid"] == rank]
        begin = next(e for e in mine if e["ph"] == "b")
        end = next(e for e in mine if e["ph"] == "e" and e["id2"] == begin["id2"])
        both, compute = (next(e for e in mine if e["name"] == name) for name in ("both", "compute"))
        started = next(e for e in mine if e["name"] == "Iallreduce")
        waited = next(e for e in mine if e["name"] == "Wait allreduce")
        assert begin["ts"] == started["ts"] < compute["ts"]
        if rank == 0:
            assert compute["ts"] + compute["dur"] < end["ts"]
            assert begin["args"]["wait_us"] > 100_000
            assert waited["dur"] > 100_000
        assert compute["dur"] >= 10_000
        assert started["ts"] + started["dur"] <= compute["ts"] + 0.002
        assert compute["ts"] + compute["dur"] <= waited["ts"] + 0.002
        assert both["ts"] <= started["ts"]
        assert waited["ts"] + waited["dur"] <= both["ts"] + both["dur"] + 0.002
        assert waited["args"]["call"] == begin["args"]["call"] == 1


@pytest.mark.in_turn
def test_short_calls_that_were_started(mpi, tmp_path):
    """They are under way from their start to their end, however long the program leaves them unasked for."""
    events, _ = record(tmp_path / "t.json", mpi, 2, "started")
    for rank in range(2):
        mine = [e for e in events if e["pid"] == rank]
        found = made(events, rank, "non-blocking")
        assert [(e["args"]["call"], e["name"]) for e in found] == [(1, "allreduce"), (2, "bcast"), (3, "allgatherv")]
        assert [e["args"]["call"] for e in made(events, rank, "blocking")] == [4]
        ends = {e["id2"]["local"]: e["ts"] for e in mine if e["ph"] == "e"}
        waits = {e["args"]["call"]: e for e in mine if e["name"].startswith("Wait")}
        assert sorted(waits) == [1, 3]  # call 2 was polled
        for begin in found:
            assert begin["args"]["caller"].endswith(" started")
            assert begin["ts"] < ends[begin["id2"]["local"]]
        assert ends[found[2]["id2"]["local"]] < waits[3]["ts"]
        assert waits[1]["ts"] + waits[1]["dur"] <= found[1]["ts"]


@pytest.mark.in_turn
def test_finalize_by_the_program(mpi, tmp_path):
    events, about = record(tmp_path / "t.json", mpi, 2, "blocking", "finalize")
    assert len(made(events, 1)) == 5
    assert about["missing_ranks"] == []


def apart(command):
    """The same, with rank 1's clock 1000 s ahead: in a time namespace of its own."""
    return ["-c", (
        "import os, sys\n"
        "rank = os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['PMI_RANK']\n"
        "ahead = ['unshare', '--fork', '--time', '--monotonic', '1000'] if rank == '1' else []\n"
        "line = [*ahead, sys.executable, *sys.argv[1:]]\n"
        "os.execvp(line[0], line)\n"
    ), *command]  # fmt: skip


def test_clocks_that_differ(tmp_path):
    if subprocess.run(["unshare", "--fork", "--time", "--monotonic", "1", "true"], capture_output=True).returncode:
        pytest.skip("the system lets this user have no time namespaces")
    events, about = record(tmp_path / "t.json", "openmpi", 3, "blocking", "far_apart", run=apart([]))
    first, other, third = about["rank"]
    assert first["clock"] == third["clock"] == "rank 0's CLOCK_MONOTONIC"
    assert other["clock"] == "own CLOCK_MONOTONIC, compared by messages"
    assert other["clock_error_ns"] < 1_000_000  # half of a round trip, on cores that others use too
    for offset in other["clock_offset_ns"]:
        assert abs(offset + 1000 * 10**9) <= other["clock_error_ns"]
    last = [made(events, rank)[-200:] for rank in range(3)]
    for same in zip(*last, strict=True):  # nobody leaves a barrier before everybody has come
        assert max(e["ts"] for e in same) <= min(e["ts"] + e["dur"] for e in same) + other["clock_error_ns"] / 1000


def test_nothing_is_recorded_when_nobody_asks():
    program = (
        "import sys; import numpy as np; from mpi4py import MPI; import collectives\n"
        "from collectives.trace import recording as trace\n"
        "comm = collectives.Communicator(MPI.COMM_WORLD)\n"
        "x, y = np.ones(1), np.empty(1)\n"
        "def calls():\n"
        "    for _ in range(2000):\n"
        "        comm.Allreduce(x, y)\n"
        "        with collectives.span('part'): pass\n"
        "calls()\n"
        "before = sys.getallocatedblocks(); calls(); more = sys.getallocatedblocks() - before\n"
        "assert more < 20, more\n"
        "assert not trace.is_recording() and comm._context.log is None\n"
        "assert collectives.span('a') is collectives.span('b')\n"
    )
    done = mpiexec("openmpi", 2, "-c", program, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_written_is_refused_by_all_ranks(tmp_path):
    for name, value, words in (
        ("COLLECTIVES_TRACE", str(tmp_path / "no/t.json"), f"there is no directory {tmp_path}/no"),
        ("COLLECTIVES_TRACE", str(tmp_path), "it is a directory"),
        ("COLLECTIVES_TRACE_EVENTS", "many", "expected a number of calls"),
    ):
        program = (
            "from mpi4py import MPI; import collectives\n"
            "try: collectives.Communicator(MPI.COMM_WORLD)\n"
            "except ValueError as e: print(e)\n"
        )
        done = mpiexec("openmpi", 2, "-c", program, timeout=60, env={name: value})
        assert done.stdout.count(f"{name}='{value}': {words}") == 2, done.stdout + done.stderr


BLOCKS = """
import json, sys
import numpy as np
from mpi4py import MPI
import collectives

folder = sys.argv[1]
comm = collectives.Communicator(MPI.COMM_WORLD)
half = comm.Split(comm.rank % 2)
x, y = np.ones(1), np.empty(1)
comm.Allreduce(x, y)
with comm.trace(f"{folder}/one.json") as timeline:
    with timeline.span("here"):
        half.Allreduce(x, y)
    comm.Dup().Barrier()
    try:
        comm.trace(f"{folder}/two.json").__enter__()
    except ValueError as e:
        assert "records one already" in str(e), e
    else:
        raise AssertionError("two at once")
comm.Allreduce(x, y)
for events in (0, True, 1.5):
    try:
        comm.trace("x", events=events)
    except ValueError as e:
        assert str(e).startswith("events: "), e
    else:
        raise AssertionError(events)
try:
    comm.trace(f"{folder}/no/such.json").__enter__()
except ValueError as e:
    assert "there is no directory" in str(e), e
else:
    raise AssertionError("no folder")
with comm.trace(f"{folder}/few.json", events=3):
    for _ in range(10):
        comm.Allreduce(x, y)
try:
    with comm.trace(f"{folder}/cut.json"):
        comm.Allreduce(x, y)
        raise KeyError("planted")
except KeyError:
    pass
"""


@pytest.mark.in_turn
def test_blocks(mpi, tmp_path):
    done = mpiexec(mpi, 3, "-c", BLOCKS, str(tmp_path), timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "cut.json.rank0.part", "cut.json.rank1.part", "cut.json.rank2.part", "few.json", "one.json",
    ]  # fmt: skip
    events, _ = perfetto.read(tmp_path / "one.json")
    for rank in range(3):
        assert [e["name"] for e in made(events, rank)] == ["allreduce", "barrier"]
    assert sum(e["name"] == "here" for e in events) == 3
    assert len({e["args"]["communicator"] for rank in range(3) for e in made(events, rank)}) == 3
    events, about = perfetto.read(tmp_path / "few.json")
    assert [len(made(events, rank)) for rank in range(3)] == [3, 3, 3]
    assert [rank["dropped"] for rank in about["rank"]] == [7, 7, 7]
    assert "rank 2 had no room for its last 7 calls and spans" in report.table(events, about)


def command(*words):
    return subprocess.run(
        [sys.executable, "-m", "collectives", "trace", *map(str, words)], capture_output=True, text=True, cwd=ROOT
    )


def test_parts_of_a_job_that_failed(tmp_path):
    path = tmp_path / "t.json"
    env = {"COLLECTIVES_TRACE": str(path)}
    words = ("-m", "collectives", "run", str(PROGRAM), "blocking", "fail")
    done = mpiexec("openmpi", 3, *words, timeout=60, env=env)
    assert done.returncode != 0
    assert not path.exists()
    assert path.with_name("t.json.rank1.part").exists()
    left = len(list(tmp_path.glob("*.part")))
    done = command(path)
    assert done.returncode == 0, done.stderr
    assert f"put {path} together from the parts of {left} of 3 ranks" in done.stderr
    events, _ = perfetto.read(path)
    assert [e["name"] for e in made(events, 1)] == ["allreduce"] * 5 + ["barrier"]


def test_a_call_that_timed_out(tmp_path):
    path = tmp_path / "t.json"
    done = mpiexec("openmpi", 3, str(PROGRAM), "blocking", "time_out", timeout=60, env={"COLLECTIVES_TRACE": str(path)})
    assert "CollectiveTimeout" in done.stderr
    assert command(path).returncode == 0
    events, _ = perfetto.read(path)
    failed = made(events, 1)[-1]
    assert failed["args"]["failed"].startswith("CollectiveTimeout: allreduce (shm, 8 bytes)")
    assert 200_000 <= failed["dur"] < 5_000_000
    assert failed["args"]["caller"].startswith(f"{PROGRAM}:")


def test_ranks_that_do_not_begin_together(tmp_path):
    program = (
        "from mpi4py import MPI; import collectives\n"
        "part = MPI.COMM_WORLD.Split(min(MPI.COMM_WORLD.rank, 1))\n"
        "if MPI.COMM_WORLD.rank: collectives.Communicator(part).Barrier()\n"
    )
    path = tmp_path / "t.json"
    done = mpiexec("openmpi", 3, "-c", program, timeout=60, env={"COLLECTIVES_TRACE": str(path)})
    assert done.returncode == 0, done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["t.rank1.json"]
    events, about = perfetto.read(tmp_path / "t.rank1.json")
    assert [len(made(events, rank)) for rank in (1, 2)] == [1, 1]
    assert about["missing_ranks"] == [0]


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "t.json", tmp_path / "t.svg"
    record(path, "openmpi", 2, "blocking", "overlapped")
    done = command(path, "--svg", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_text().count("<path") > 20
    done = command(path, "--svg", picture, "--window", "100000:100001")
    assert done.returncode == 2
    assert "nothing was recorded between 100000 and 100001 ms" in done.stderr
    assert command(path, "--svg", picture, "--window", "5:1").returncode == 2


def test_a_picture_of_nothing(tmp_path, capsys):
    """The error names an option only if it was given."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "t.json"
    part = {"rank": 0, "host": "here", "clock": "own", "dropped": 0}
    about = {"format": perfetto.FORMAT, "version": 1, "ranks": 1, "missing_ranks": [], "seconds": 1.0, "rank": [part]}
    path.write_text(json.dumps({"traceEvents": [], "otherData": about}))
    words = ["trace", str(path), "--svg", str(tmp_path / "t.svg")]
    assert main(words) == 2
    assert capsys.readouterr().err == "trace: error: nothing to draw: no call and no span was recorded\n"
    assert main([*words, "--window", "0:5"]) == 2
    assert "--window: nothing was recorded between 0 and 5 ms" in capsys.readouterr().err


def test_files_that_are_something_else(tmp_path):
    (tmp_path / "x.json").write_text("[]")
    (tmp_path / "y.json").write_text(json.dumps({"traceEvents": [], "otherData": {}}))
    (tmp_path / "z.json.rank0.part").write_bytes(b"none")
    for name, words in (("x", "is not a timeline"), ("y", "of another program"), ("z", "is not a rank's part")):
        done = command(tmp_path / f"{name}.json")
        assert done.returncode == 2
        assert words in done.stderr
    assert "neither" in command(tmp_path / "none.json").stderr


def test_the_page(tmp_path):
    """The programs of docs/tracing.md, and what it says of the table's columns."""
    page = (ROOT / "docs/tracing.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    path = tmp_path / "part.json"
    done = mpiexec("openmpi", 2, "-c", block.replace("part.json", str(path)), timeout=60)
    assert done.returncode == 0, done.stderr
    events, about = perfetto.read(path)
    assert [e["name"] for e in made(events, 1)] == ["allreduce"] * 3
    head = report.table(events, about).splitlines()[2]
    shown = next(line for line in page.splitlines() if line.startswith("collective  "))
    assert head.split() == shown.split()
