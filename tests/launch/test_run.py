"""`python -m collectives run`: programs see what Python itself would show them, and end together."""

import re
import signal
import subprocess
import sys
import textwrap
import time
import zipfile

import pytest
from jobs import mpiexec

RUN = [sys.executable, "-m", "collectives", "run"]

SHOW = """\
import sys
import helper
print(sys.argv, sys.path[0], __name__, globals().get("__file__"), __package__, __spec__ and __spec__.name)
print(sys.modules["__main__"].__dict__ is globals(), helper.__file__, "annotations" in globals())
"""


def python(*command, cwd):
    """A Python process without MPI; its result."""
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=cwd, timeout=60)


def write(folder, name, text):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return str(file)


@pytest.fixture
def home(tmp_path):
    """A folder with a program in every form that Python starts."""
    for folder in (".", "scripts", "package", "folder"):
        write(tmp_path, f"{folder}/helper.py", "")
    write(tmp_path, "scripts/prog.py", SHOW)
    write(tmp_path, "folder/__main__.py", SHOW)
    write(tmp_path, "package/__init__.py", "")
    write(tmp_path, "package/__main__.py", SHOW)
    (tmp_path / "link.py").symlink_to("scripts/prog.py")
    (tmp_path / "scripts" / "noext").write_text(SHOW)
    with zipfile.ZipFile(tmp_path / "prog.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
        archive.writestr("helper.py", "")
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["scripts/prog.py", "a", "--replace-world", "-m", "b", "--", "-h"],
        ["./scripts/../link.py"],
        ["scripts/noext", "-c"],
        ["folder", "x"],
        ["prog.zip"],
        ["-m", "package", "-c", "x"],
        ["-m", "package.__main__"],
        ["-c", SHOW, "-m", "x"],
    ],
    ids=lambda command: " ".join(command).partition("\n")[0],
)
def test_a_program_finds_what_python_gives_it(home, command):
    ours, theirs = python("-m", "collectives", "run", *command, cwd=home), python(*command, cwd=home)
    assert theirs.returncode == 0, theirs.stderr
    assert (ours.stdout, ours.stderr) == (theirs.stdout, theirs.stderr)


def test_isolated_from_the_folder_it_is_in(home):
    """With -I, Python puts no folder on the path, and so do we."""
    ours = python("-I", "-m", "collectives", "run", "scripts/prog.py", cwd=home)
    assert "No module named 'helper'" in ours.stderr


FAILURES = {
    "exception": "def f():\n    raise ValueError('no', 'good')\nf()\n",
    "chain": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(2) from e\n",
    "syntax": "x = 1\ny = = 2\n",
    "code": "import sys\nsys.exit(7)\n",
    "message": "import sys\nsys.exit('no such thing')\n",
    "success": "import sys\nprint('fine')\nsys.exit()\n",
    "true": "raise SystemExit(True)\n",
    "negative": "raise SystemExit(-1)\n",
    "hook": "import sys\nsys.excepthook = lambda *a: print('caught', a[0].__name__, a[2].tb_lineno)\n1 / 0\n",
    "hook that fails": "import sys\ndef hook(*a):\n    {}['a']\nsys.excepthook = hook\n1 / 0\n",
    "hook that ends": "import sys\nsys.excepthook = lambda *a: sys.exit(3)\n1 / 0\n",
    "no stderr": "import sys\nsys.stderr = None\n1 / 0\n",
}


@pytest.mark.parametrize("program", FAILURES.values(), ids=FAILURES)
def test_a_process_on_its_own_ends_as_under_python(tmp_path, program):
    file = write(tmp_path, "prog.py", program)
    ours, theirs = python("-m", "collectives", "run", file, cwd=tmp_path), python(file, cwd=tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr)


def test_an_interrupt_is_quiet(tmp_path):
    file = write(tmp_path, "prog.py", "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    with subprocess.Popen(
        [*RUN, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background ignore it
    ) as process:  # fmt: skip
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 128 + signal.SIGINT
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ([], "name a program"),
        (["-m"], "name a program"),
        (["--replace-world"], "name a program"),
        (["nowhere.py"], "cannot open nowhere.py: No such file"),
        (["."], "no __main__.py in ."),
        (["--replace-world", "nowhere.py"], "cannot open nowhere.py: No such file"),
        (["--nonsense", "prog.py"], "--nonsense"),
    ],
)
def test_wrong_arguments(tmp_path, command, word):
    ours = python("-m", "collectives", "run", *command, cwd=tmp_path)
    assert ours.returncode == 2
    assert word in ours.stderr


# --- several ranks ------------------------------------------------------------------------------------------------


def run(mpi, ranks, *words):
    """`python -m collectives run WORDS` on ranks of an MPI; its result and how long it took."""
    begin = time.perf_counter()
    done = mpiexec(mpi, ranks, "-m", "collectives", "run", *words, timeout=60)
    return done, time.perf_counter() - begin


def test_an_exception_on_one_rank_ends_all(mpi, tmp_path):
    """The traceback comes first, whole, and without our own frames; what was printed before is not lost."""
    file = write(tmp_path, "prog.py", """\
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        if comm.rank == 1:
            print("before")
            comm.rank / 0
        comm.Barrier()
        """)  # fmt: skip
    done, seconds = run(mpi, 3, file)
    assert done.returncode not in (0, 124)
    assert seconds < 20
    assert "before" in done.stdout
    marked = [line for line in done.stderr.splitlines() if line.strip()][:5]
    assert marked[0] == "[rank 1] Traceback (most recent call last):"
    assert marked[1] == f'[rank 1]   File "{file}", line 5, in <module>'
    assert "[rank 1] ZeroDivisionError: division by zero" in marked
    assert done.stderr.count("Traceback") == 1


@pytest.mark.parametrize("end", ["1 / 0", "sys.exit('away')", "sys.excepthook = lambda: 0; 1 / 0"])
def test_a_rank_that_cannot_say_why_ends_all_the_same(tmp_path, end):
    """Its standard error is closed, or its own hook fails."""
    closing = "sys.stderr.close()" if "hook" not in end else "pass"
    file = write(tmp_path, "prog.py", f"""\
        import sys
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        if comm.rank == 1:
            {closing}
            {end}
        comm.Barrier()
        """)  # fmt: skip
    done, seconds = run("mpich", 2, file)
    assert done.returncode not in (0, 124), done.stderr
    assert seconds < 20
    assert ("[rank 1] ZeroDivisionError: division by zero" in done.stderr) == ("hook" in end)


def test_an_exception_before_mpi_starts_ends_all(mpi, tmp_path):
    file = write(tmp_path, "prog.py", """\
        import os
        if "0" not in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK")):
            raise ValueError("early")
        from mpi4py import MPI
        MPI.COMM_WORLD.Barrier()
        """)  # fmt: skip
    done, _ = run(mpi, 2, file)
    assert done.returncode not in (0, 124)
    assert done.stderr.lstrip().startswith("[rank 1] Traceback")
    assert "[rank 1] ValueError: early" in done.stderr


@pytest.mark.parametrize("code", ["7", "'too few\\nsamples'"])
def test_an_exit_code_on_one_rank_ends_all(mpi, code):
    program = f"from mpi4py import MPI; c = MPI.COMM_WORLD; c.rank == 1 and exit({code}); c.Barrier()"
    done, _ = run(mpi, 2, "-c", program)
    assert done.returncode == (7 if code == "7" else 1)
    assert "Traceback" not in done.stderr
    assert ("too few\nsamples" in done.stderr) == (code != "7")


def test_exit_code_0_ends_one_rank_only(mpi):
    done, _ = run(mpi, 2, "-c", "import sys, time; from mpi4py import MPI; r = MPI.COMM_WORLD.rank\n"
                  "if r == 1: sys.exit(0)\ntime.sleep(0.5); print('still here')")  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "still here\n"), done.stderr


REPLACED = """\
import sys
import numpy as np
from mpi4py import MPI
from mpi4py.MPI import COMM_WORLD
comm = MPI.COMM_WORLD
x = np.full(5000, comm.rank + 1.0)
comm.Allreduce(MPI.IN_PLACE, x)
comm.Barrier()
half = comm.Split(0, -comm.rank)
half.Allreduce(x, y := np.empty_like(x), MPI.MAX)
lines = comm.gather((sys.argv[1:], comm is COMM_WORLD, type(comm).__module__, type(half).__name__, comm.last.collective,
                     half.last.algorithm, x[0] == y[-1] == sum(range(1, comm.size + 1))))
if comm.rank == 0:
    print(*lines, sep="\\n")
"""


def test_an_unmodified_program_gets_our_world(mpi, tmp_path):
    done, _ = run(mpi, 3, "--replace-world", write(tmp_path, "prog.py", REPLACED), "-x")
    line = "(['-x'], True, 'collectives.communicator', 'Communicator', 'barrier', 'shm', np.True_)"
    assert (done.returncode, done.stdout.splitlines()) == (0, [line] * 3), done.stderr


IN_ITS_PLACE = """
import copy, pickle
import numpy as np
from mpi4py import MPI
world, refused = MPI.COMM_WORLD, 0
for end in (world.Free, world.Disconnect):
    try:
        end()
    except MPI.Exception as error:
        refused += error.Get_error_class() == MPI.ERR_COMM
passed = world.sendrecv({"comm": world}, (world.rank + 1) % world.size)["comm"]
try:
    pickle.dumps(world.Dup())
except ValueError:
    refused += 1
world.Allreduce(np.ones(3), y := np.empty(3))
lines = world.gather((refused, passed is world, pickle.loads(pickle.dumps(world)) is world, copy.copy(world) is world,
                      world.Get_name(), world == MPI.Intracomm(world), y[0] == world.size))
if world.rank == 0:
    print(*lines, sep="\\n")
"""


def test_our_world_is_in_the_place_of_mpis(mpi, tmp_path):
    """Pickled by name, called as MPI's, and freed by nobody."""
    done, _ = run(mpi, 2, "--replace-world", write(tmp_path, "prog.py", IN_ITS_PLACE))
    line = "(3, True, True, True, 'MPI_COMM_WORLD', True, np.True_)"
    assert (done.returncode, done.stdout.splitlines()) == (0, [line] * 2), done.stderr


def test_the_world_is_mpis_unless_asked(tmp_path):
    done = python("-m", "collectives", "run", "-c", "from mpi4py import MPI; print(type(MPI.COMM_WORLD))", cwd=tmp_path)
    assert done.stdout == "<class 'mpi4py.MPI.Intracomm'>\n"


def test_an_exception_in_the_replaced_world(mpi, tmp_path):
    """A rank that fails while the others wait in a collective of ours."""
    file = write(tmp_path, "prog.py", """\
        import numpy as np
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        x = np.ones(10)
        comm.Allreduce(MPI.IN_PLACE, x[::2] if comm.rank == 1 else x)
        """)  # fmt: skip
    done, seconds = run(mpi, 3, "--replace-world", file)
    assert done.returncode not in (0, 124)
    assert seconds < 20
    told = re.sub(r"^other processes that are bound to .*\n", "", done.stderr, flags=re.MULTILINE)  # of another test
    assert told.lstrip().startswith("[rank 1] Traceback")
    assert "[rank 1] ValueError: recvbuf: the array is strided" in done.stderr
