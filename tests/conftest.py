"""Fixtures for all tests: the repository, and the three MPI environments that `make build-all` sets up."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MPIS = ("openmpi", "mpich", "impi")
DRIVER_FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-w", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"]


def mpiexec(mpi: str, ranks: int, *command: str, timeout: float = 600, env: dict[str, str] | None = None, flags=()):
    """Run `python COMMAND` on `ranks` ranks of an MPI; the completed process with its output as text."""
    home = ROOT / ".venvs" / mpi / "bin"
    flags = ["--oversubscribe", *flags] if mpi == "openmpi" else flags
    variables = {
        **os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **(env or {}),
    }  # fmt: skip
    return subprocess.run(
        ["timeout", "-k", "5", str(timeout), home / "mpiexec", *flags, "-n", str(ranks), home / "python", *command],
        capture_output=True, text=True, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(params=MPIS)
def mpi(request) -> str:
    """Each of the three MPIs in turn."""
    return request.param


@pytest.fixture(scope="session")
def kernel_objects(tmp_path_factory) -> list[Path]:
    """The kernels, compiled once for all drivers in C."""
    folder = tmp_path_factory.mktemp("kernels")
    sources = sorted((ROOT / "csrc/kernels").glob("*.c"))
    subprocess.run(["cc", *DRIVER_FLAGS, "-c", *sources], check=True, cwd=folder)
    return sorted(folder.glob("*.o"))
