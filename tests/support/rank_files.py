"""Files of tests/mpi, run on all ranks of a job."""

import re

from jobs import mpiexec


def run_files(mpi: str, ranks: int, *names: str) -> None:
    """Run some files by pytest on every rank; each of their tests must pass, and each file have some."""
    files = [f"tests/mpi/test_{name}.py" for name in names]
    command = ("-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider", *files)
    done = mpiexec(mpi, ranks, *command, timeout=400 * len(names))
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]
    for file in files:
        assert re.search(rf"^{re.escape(file)}::\S.* PASSED", done.stdout, re.MULTILINE), (file, done.stdout[-20_000:])
