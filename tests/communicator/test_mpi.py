"""The files of tests/mpi under mpiexec: Open MPI, MPICH and Intel MPI, on several numbers of ranks.

Of training: tests/train/test_mpi.py.
"""

import pytest
from rank_files import run_files

#: What one job runs, since starting it takes longer than most files.
GROUPS = {
    "calls": ("allreduce", "requests", "request_lifetimes", "by_mpi"),
    "communicator": ("communicator", "duplicates"),
    "more": (
        "collectives", "fast_path", "long", "operations", "order", "objects", "object_folds", "started_objects",
        "public",
    ),
    "limit": ("limit",),
    "exchanges": ("exchanges",),
    "reproducible": ("reproducible",),
    "bench": ("bench",),
}  # fmt: skip
RANKS = {
    "calls": {"openmpi": (1, 2, 3, 5, 7, 8), "mpich": (1, 2, 3), "impi": (1, 2, 3)},  # ranks of the last two spin
    "communicator": {"openmpi": (1, 2, 3, 5, 8), "mpich": (1, 2, 3), "impi": (1, 2, 3)},
    "more": {"openmpi": (1, 2, 3, 5), "mpich": (2, 3), "impi": (2, 3)},
    "limit": {"mpich": (2, 3), "impi": (2, 3)},
    "exchanges": {"openmpi": (1, 2, 3, 4, 6), "mpich": (2, 3), "impi": (2, 3)},
    "reproducible": {"openmpi": (1, 3, 5, 8), "mpich": (2,), "impi": (2,)},
    "bench": {"openmpi": (2, 3), "mpich": (2,), "impi": (2,)},
}
#: Three ranks of Open MPI, which give way to each other, and two of those MPIs whose ranks spin.
QUICK = [f"openmpi-3-{group}" for group in ("calls", "more", "exchanges", "reproducible")]
QUICK += [f"{mpi}-2-{group}" for mpi in ("mpich", "impi") for group in ("calls", "communicator")]
QUICK += ["openmpi-1-calls", "openmpi-2-communicator", "openmpi-2-bench", "mpich-2-limit"]


@pytest.mark.long("impi-2-communicator", "openmpi-2-bench")
@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize(
    ("mpi", "ranks", "group"),
    [(mpi, ranks, group) for group, of in RANKS.items() for mpi, numbers in of.items() for ranks in numbers],
)
def test_under_mpiexec(mpi, ranks, group):
    run_files(mpi, ranks, *GROUPS[group])
