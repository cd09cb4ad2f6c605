"""The files of tests/mpi on training under mpiexec: Open MPI, MPICH and Intel MPI, on several numbers of ranks."""

import pytest
from rank_files import run_files

#: What one job runs, since starting it takes longer than most files.
GROUPS = {"steps": ("train_mpi",), "strategies": ("train_sync", "train_averaging", "weights_mpi")}
RUNS = [("openmpi", ranks, "steps") for ranks in (1, 2, 3, 4)]
RUNS += [("openmpi", ranks, "strategies") for ranks in (1, 2, 3, 4, 5)]
RUNS += [(mpi, ranks, "strategies") for mpi in ("mpich", "impi") for ranks in (2, 3)]
QUICK = ("openmpi-2-steps", "openmpi-3-strategies")


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize(("mpi", "ranks", "group"), RUNS)
def test_under_mpiexec(mpi, ranks, group):
    run_files(mpi, ranks, *GROUPS[group])
