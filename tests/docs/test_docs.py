"""The programs of docs/pitfalls.md, docs/profiling.md, docs/errors.md, docs/calls.md and docs/benchmarks.md run, and
show what the pages say."""

import re
import shlex
import subprocess
import sys

import pytest
from jobs import ROOT, mpiexec
from mpi4py import MPI

from collectives.arguments.calls import COLLECTIVES, EXCHANGES
from collectives.cli import info
from collectives.communicator import Distgraphcomm

PROFILING = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/profiling.md").read_text(), re.DOTALL | re.MULTILINE)
PITFALLS = (ROOT / "docs/pitfalls.md").read_text()


@pytest.mark.parametrize("block", PROFILING, ids=range(len(PROFILING)))
def test_profiling(block, tmp_path):
    (tmp_path / "prog.py").write_text(block)
    done = mpiexec("openmpi", 2, str(tmp_path / "prog.py"), timeout=60)
    assert done.returncode == 0, done.stderr


def rows(text):
    """The lines of the table: what, as it is, with ours."""
    return {line[:44].strip(): (line[45:69].strip(), line[70:].strip()) for line in text.splitlines()[2:] if line}


def test_pitfalls(mpi):
    done = mpiexec(mpi, 3, "examples/pitfalls.py", timeout=60)
    assert done.returncode == 0, done.stderr
    found, shown = rows(done.stdout), rows(re.search(r"```text\n(.*?)```", PITFALLS, re.DOTALL)[1])
    assert found.keys() == shown.keys()
    for what, (theirs, ours) in shown.items():
        assert found[what][1] == ours, what
        if mpi == "openmpi" and "bits" not in what and what:
            assert found[what][0] == theirs, what


def test_errors():
    """Sorted, for ranks may wait for each other in another order, and see an error before others have raised it."""
    page = (ROOT / "docs/errors.md").read_text()
    done = mpiexec("openmpi", 3, "examples/errors.py", timeout=60)
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)[1]
    plain = [
        [re.sub(r"; raised \w+$", "", line) for line in sorted(text.splitlines()) if line.strip("\0 ")]
        for text in (done.stdout.split("-----")[0].replace(f"{ROOT}/", ""), shown)
    ]
    assert plain[0] == plain[1]


def test_survivors_go_on(tmp_path):
    """The program of docs/errors.md prints what the page says."""
    page = (ROOT / "docs/errors.md").read_text()
    program = tmp_path / "survive.py"
    program.write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    done = mpiexec("openmpi", 3, str(program), timeout=60, flags=["--with-ft", "ulfm"])
    assert done.returncode == 0, done
    assert done.stdout == re.search(r"On 3 ranks it prints `(.*?)`", page)[1] + "\n", done


def test_the_command_on_the_page():
    assert "mpiexec -n 3 python examples/pitfalls.py" in PITFALLS
    assert (ROOT / "examples/pitfalls.py").exists()


BENCHMARKS = (ROOT / "docs/benchmarks.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", BENCHMARKS, re.DOTALL | re.MULTILINE)


def without_times(text):
    """What a table shows on any machine, however busy."""
    return re.sub(r"(?<=\d) +\d+\.\d\d\b", " T", re.sub(r"^# Busy: .*\n", "", text, flags=re.MULTILINE))


@pytest.mark.long
def test_benchmarks(tmp_path):
    """Every command and program on the page; the table it shows is what the command prints, but for the times."""
    printed = ""
    for language, block in BLOCKS:
        if language == "text":
            assert without_times(printed) == without_times(block)
            continue
        if language == "python":
            (tmp_path / "prog.py").write_text(block)
            block = f"mpiexec -n 2 python {tmp_path / 'prog.py'}"
        for line in block.splitlines():
            words = [str(tmp_path / w) if w.endswith((".json", ".svg")) else w for w in shlex.split(line)]
            if words[0] == "mpiexec":
                done = mpiexec("openmpi", int(words[2]), *words[4:], timeout=60)
            else:
                done = subprocess.run(
                    [sys.executable, *words[1:]], capture_output=True, text=True, cwd=ROOT, timeout=60
                )
            assert done.returncode == 0, done.stderr
            printed = done.stdout
    assert (tmp_path / "allgather.svg").exists()


CALLS = (ROOT / "docs/calls.md").read_text()


@pytest.mark.parametrize("number", range(4))
def test_calls(number, tmp_path):
    """The programs of docs/calls.md print what the page says."""
    (tmp_path / "prog.py").write_text(re.findall(r"^```python\n(.*?)^```$", CALLS, re.DOTALL | re.MULTILINE)[number])
    done = mpiexec("openmpi", 2, str(tmp_path / "prog.py"), timeout=60)
    assert done.returncode == 0, done.stderr
    said = [*re.findall(r"On 2 ranks it prints `(.*?)`", CALLS), None]
    assert done.stdout == ("" if said[number] is None else f"{said[number]}\n")


def test_the_table_of_calls_is_complete():
    """Every collective method of mpi4py's communicators is in the table, in the row of the library that runs it."""
    rows = [row for row in CALLS.splitlines() if row.startswith("| `")]
    theirs = next(row for row in rows if row.startswith("| `neighbor_allgather`"))
    assert "| the MPI library |" in theirs
    for name in ("neighbor_allgather", "neighbor_alltoall"):
        assert f"`{name}`" in theirs
        assert getattr(Distgraphcomm, name) is getattr(MPI.Distgraphcomm, name)
    ours = "".join(row for row in rows if "| this library" in row)
    for collective in (COLLECTIVES | EXCHANGES).values():
        assert collective.method.rstrip("vw").removesuffix("_block") in ours
        assert getattr(Distgraphcomm, collective.method) is not getattr(MPI.Distgraphcomm, collective.method)


TYPES = r"""
import ml_dtypes
import numpy as np
from mpi4py import MPI
import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)


def reduced(dtype, op=MPI.SUM):
    x = np.zeros(4, dtype)
    comm.Bcast(x)
    comm.Allgather(x, np.zeros(4 * comm.size, dtype))
    try:
        comm.Allreduce(x, np.zeros_like(x), op=op)
    except TypeError:
        return "TypeError"
    return comm.last.algorithm


reduced_here = "? i1 i2 i4 i8 u1 u2 u4 u8 f4 f8 F D f2".split()
print({reduced(t) for t in reduced_here} | {reduced(ml_dtypes.bfloat16)}, {reduced("g"), reduced("G")})
only_moved = [ml_dtypes.float8_e4m3fn, ml_dtypes.int4, "M8[s]", "S4", [("a", "i4"), ("b", "f8")], ">f4"]
print({reduced(t) for t in only_moved}, reduced("F", MPI.MAX))
for call in (lambda: comm.Bcast(np.array([None])), lambda: comm.Bcast(np.ones(8)[::2])):
    try:
        call()
    except (TypeError, ValueError) as e:
        print(type(e).__name__, e)
comm.Bcast(np.ones((2, 3), order="F"))
"""


def test_types(tmp_path):
    """The table of element types of docs/calls.md."""
    (tmp_path / "prog.py").write_text(TYPES)
    done = mpiexec("openmpi", 2, str(tmp_path / "prog.py"), timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(
        2
        * [
            "{'shm'} {'mpi'}",
            "{'TypeError'} TypeError",
            "TypeError buf: the buffer holds Python objects; pass them to the methods in lower case",
            "ValueError buf: the array is strided; pass a contiguous one (numpy.ascontiguousarray)",
        ]
    )


TORCH = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/torch.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize(
    ("block", "printed"),
    [(0, r"2 ranks, largest weight 0\.\d{6}\n"), *((i, r"allreduce .* waiting for rank 1\n") for i in (1, 2))],
)
def test_torch(block, printed, tmp_path):
    assert len(TORCH) == 4
    hook = TORCH[3] if block == 0 else ""  # a function, which prints nothing
    (tmp_path / "prog.py").write_text(hook + TORCH[block])
    done = mpiexec("torch", 2, str(tmp_path / "prog.py"), timeout=60)
    assert block in (1, 2) or done.returncode == 0, done.stderr  # whose ranks end by MPI_Abort
    assert re.fullmatch(printed, done.stdout), done.stdout + done.stderr


VARIABLE = re.compile(r"\bCOLLECTIVES_[A-Z_]*[A-Z]\b")
READERS = [
    *ROOT.glob("collectives/**/*.py"), *ROOT.glob("collectives/core/*.px?"), *ROOT.glob("collectives/core/*.pyx"),
    *ROOT.glob("csrc/**/*.c"), *ROOT.glob("csrc/**/*.h"), ROOT / "setup.py", ROOT / "Makefile",
]  # fmt: skip


def test_environment():
    """The table has every variable that the code names, and no other; so has the command `info`."""
    page = (ROOT / "docs/environment.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    named = {name for file in READERS for name in VARIABLE.findall(file.read_text())}
    assert sorted(row[1].strip(" `") for row in rows) == sorted(named)
    assert named == set(info.VARIABLES)
    most = re.search(r"^EVENTS = (\S+)", (ROOT / "collectives/trace/recording.py").read_text(), re.MULTILINE)[1]
    assert [row[2].strip() for row in rows if "TRACE_EVENTS" in row[1]] == [most.replace("_", "")]
    for row in rows:
        linked = re.search(r"\]\((.*?)\)", row[5])[1]
        assert row[1].strip(" `") in (ROOT / "docs" / linked).read_text(), row[1]
