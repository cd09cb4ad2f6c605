"""The files of tests/mpi under mpiexec: Open MPI, MPICH and Intel MPI, on several numbers of ranks."""

import re

import pytest
from jobs import mpiexec

FILES = ("allreduce", "requests", "communicator")
RANKS = {"openmpi": (1, 2, 3, 4, 5, 7, 8), "mpich": (1, 2, 3), "impi": (1, 2, 3)}  # ranks of the last two spin
MORE_FILES = ("collectives", "fast_path", "long", "operations", "order", "objects", "started_objects", "public")
MORE_RANKS = {"openmpi": (1, 2, 3, 5), "mpich": (2, 3), "impi": (2, 3)}
RUNS = [(mpi, ranks, file) for mpi, sizes in RANKS.items() for ranks in sizes for file in FILES]
RUNS += [(mpi, ranks, file) for mpi, sizes in MORE_RANKS.items() for ranks in sizes for file in MORE_FILES]
RUNS += [("openmpi", ranks, file) for file in ("train_mpi", "train_sync") for ranks in (1, 2, 3, 4)]
RUNS += [(mpi, 2, "train_sync") for mpi in ("mpich", "impi")]
RUNS += [("openmpi", ranks, "train_averaging") for ranks in (1, 2, 3, 5)]
RUNS += [(mpi, ranks, "train_averaging") for mpi in ("mpich", "impi") for ranks in (2, 3)]
RUNS += [("openmpi", ranks, "weights_mpi") for ranks in (1, 2, 3)]
RUNS += [(mpi, ranks, "reproducible") for mpi, ranks in (("openmpi", 3), ("mpich", 2), ("impi", 2))]
RUNS += [("openmpi", ranks, "reproducible") for ranks in (1, 4, 5, 8)]
RUNS += [("openmpi", ranks, "bench") for ranks in (2, 3)] + [("mpich", 2, "bench"), ("impi", 2, "bench")]


def slow(mpi, ranks, file):
    """Whether only make test-all runs it: ranks of MPICH and Intel MPI spin, three of them on fewer cores for long."""
    if file == "allreduce":
        return ranks in (4, 5, 7, 8) or (mpi != "openmpi" and ranks == 3)
    spinning = mpi != "openmpi" and ranks != 2 and (mpi, file) != ("mpich", "requests")
    if ranks == 5 or (mpi, ranks, file) == ("openmpi", 3, "communicator"):  # most of a minute
        return True
    alike = file not in FILES and (ranks in (1, 5) or (file in ("bench", "train_mpi") and ranks == 3))
    return ranks in (4, 7, 8) or spinning or alike


@pytest.mark.parametrize(
    ("mpi", "ranks", "file"), [pytest.param(*run, marks=pytest.mark.slow if slow(*run) else ()) for run in RUNS]
)
def test_under_mpiexec(mpi, ranks, file):
    command = ("-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", f"tests/mpi/test_{file}.py")
    done = mpiexec(mpi, ranks, *command, timeout=240)
    passed = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-20_000:]
    assert passed, done.stdout
    assert int(passed[1]) > 0
