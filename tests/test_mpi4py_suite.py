"""mpi4py's own tests of collectives pass on our communicators, and on ours indeed: see tests/mpi/mpi4py_suite.py."""

import re
import subprocess

import pytest
from conftest import ROOT, mpiexec

FOLDER = ROOT / ".venvs" / "mpi4py-tests" / "test"
RUNS = [("openmpi", 1), ("openmpi", 2), ("openmpi", 3), ("openmpi", 5), ("mpich", 1), ("mpich", 2), ("mpich", 3)]
RUNS += [("impi", 1), ("impi", 2), ("impi", 3), ("impi", 5)]


@pytest.mark.slow  # make test-mpi4py, which CI runs too
@pytest.mark.parametrize(("mpi", "ranks"), RUNS)
def test_on_our_communicators(mpi, ranks):
    done = mpiexec(mpi, ranks, "tests/mpi/mpi4py_suite.py", str(FOLDER), timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-20_000:]
    assert "\nOK" in done.stderr
    tests, ours, calls = map(int, re.search(r"(\d+) tests, .* (\d+) of (\d+) calls ours", done.stdout).groups())
    assert tests > 450
    assert ours > 0.7 * calls, done.stdout


def test_they_are_of_the_version_that_is_installed():
    python = ROOT / ".venvs" / "openmpi" / "bin" / "python"
    version = subprocess.run(
        [python, "-c", "import mpi4py; print(mpi4py.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert [file.name for file in FOLDER.parent.glob("*.tar.gz")] == [f"mpi4py-{version}.tar.gz"]
