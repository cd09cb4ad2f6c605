"""What counts as the death of a rank."""

from jobs import mpiexec

JUDGES = """
from mpi4py import MPI
from collectives.diagnostics import deaths
from collectives.train.deaths import is_death

for name in ("ERR_UNKNOWN", "ERR_TRUNCATE", "ERR_PROC_FAILED"):
    error = MPI.Exception(getattr(MPI, name))
    print(name, is_death(error), deaths.by_death(error), deaths.means_death(getattr(MPI, name)))
"""


def test_which_errors_of_mpi_mean_a_death(mpi):
    """Where MPI has no error for that, mpi4py calls an unknown error so."""
    done = mpiexec(mpi, 1, "-c", JUDGES, timeout=60)
    told = "True True True" if mpi == "openmpi" else "False False False"
    lines = ["ERR_UNKNOWN False False False", "ERR_TRUNCATE False False False", f"ERR_PROC_FAILED {told}"]
    assert done.stdout.splitlines() == lines, done.stderr
