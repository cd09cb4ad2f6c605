"""mpi4py's own tests pass under `run --replace-world`, by collectives of ours: see programs/mpi4py_suite.py."""

import re
import subprocess

import pytest
from jobs import ROOT, mpiexec

FOLDER = ROOT / ".venvs" / "mpi4py-tests" / "test"
RUN = ("-m", "collectives", "run", "--replace-world", "tests/communicator/programs/mpi4py_suite.py", str(FOLDER))


def check(mpi, ranks, kinds, least):
    done = mpiexec(mpi, ranks, *RUN, *kinds, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-20_000:]
    assert "\nOK" in done.stderr
    tests, ours, calls = map(int, re.search(r"(\d+) tests, .* (\d+) of (\d+) calls ours", done.stdout).groups())
    assert tests > least
    assert ours > 0.7 * calls, done.stdout


@pytest.mark.slow  # make test-mpi4py, which CI runs too
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_under_replace_world(mpi, ranks):
    check(mpi, ranks, ["COLLECTIVES", "WORLD"], 1200)


@pytest.mark.slow
@pytest.mark.parametrize("mpi", ["openmpi", "impi"])
def test_collectives_of_more_ranks(mpi):
    check(mpi, 5, ["COLLECTIVES"], 450)


def test_they_are_of_the_version_that_is_installed():
    python = ROOT / ".venvs" / "openmpi" / "bin" / "python"
    version = subprocess.run(
        [python, "-c", "import mpi4py; print(mpi4py.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert [file.name for file in FOLDER.parent.glob("*.tar.gz")] == [f"mpi4py-{version}.tar.gz"]
