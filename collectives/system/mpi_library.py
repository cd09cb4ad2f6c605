"""The MPI library that mpi4py has loaded: its properties, and the transport that was built for its ABI."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from mpi4py import MPI

from ..core import _core
from ..selection.table import named

__all__ = ["abi", "description", "fears_the_dead", "library", "library_path", "locks_ops", "why_no_survivors"]


def abi() -> str:
    """ABI of the MPI that mpi4py loaded: ``"mpich"`` (Intel MPI too) or ``"openmpi"``."""
    return "openmpi" if "Open MPI" in MPI.Get_library_version() else "mpich"


def description() -> str:
    """Name and version of the MPI, without the patch level: ``Open MPI 5.0``."""
    return named(*MPI.get_vendor())


def locks_ops() -> bool:
    """Whether this MPI holds its lock while it applies an op.

    A user-defined op in Python then takes Python's lock while MPI's is held. Other threads may take the two locks in
    the reverse order, as mpi4py's local functions do, so such an op must not run in the progress thread.
    """
    return "Intel" in MPI.Get_library_version()


def fears_the_dead() -> bool:
    """Whether a message to a dead process of another machine blocks or crashes this process, rather than fails.

    MPI_Isend of Intel MPI 2021.18 never returns then, and keeps MPI's lock; MPICH 5.0.2 crashes.
    """
    return abi() == "mpich"


def why_no_survivors() -> str | None:
    """Why this job ends when a rank dies, as text; None if it goes on (ULFM, in Open MPI 5 with mpi4py 4.1)."""
    name = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    if abi() == "openmpi" and hasattr(MPI.Comm, "Shrink"):
        if os.environ.get("OMPI_MCA_mpi_ft_enable", "0").lower() in ("1", "true", "t", "yes", "enabled"):
            return None
        return f"this launcher ends the job when a rank dies; start it with mpiexec --with-ft ulfm ({name})"
    return (
        f"this launcher ends the job when a rank dies; Open MPI 5 with mpiexec --with-ft ulfm does not (this is {name})"
    )


def library_path(name: str) -> Path:
    """File of the transport for the ABI ``name``; it may not have been built."""
    return Path(_core.__file__).with_name(f"transport_{name}.so")


@functools.cache
def library() -> _core.MPILibrary:
    """The transport for this MPI, loaded by the first call; ImportError if there is none or it does not fit."""
    name = abi()
    path = library_path(name)
    version = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    if not path.exists():
        raise ImportError(
            f"mpi4py runs on {version}, and collectives was built without a transport for that ABI ({name}); "
            "build it again with COLLECTIVES_MPICC set to the mpicc of this MPI"
        )
    try:
        loaded = _core.MPILibrary(str(path))
    except ImportError as e:
        raise ImportError(f"{path.name}, the transport for {version}, does not load: {e}") from None
    if loaded.abi != name or not loaded.shares_mpi(MPI.Is_initialized(), MPI.Get_library_version()):
        raise ImportError(
            f"mpi4py runs on {version}, but {path.name} was linked to another MPI library in this process; "
            "build collectives again with COLLECTIVES_MPICC set to the mpicc of mpi4py's MPI"
        )
    return loaded
