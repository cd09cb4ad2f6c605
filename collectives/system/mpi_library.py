"""The MPI transport that fits the MPI that mpi4py runs on."""

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

    A user's op then waits for Python's lock with MPI's taken: while other threads may do the reverse, as mpi4py's local
    functions do, the op must not run in a thread that the program knows nothing of.
    """
    return "Intel" in MPI.Get_library_version()


def fears_the_dead() -> bool:
    """Whether a message to a dead process of another machine is this one's end, rather than an error.

    MPI_Isend of Intel MPI 2021.18 never returns then, and takes MPI from all other threads; MPICH 5.0.2 crashes.
    """
    return abi() == "mpich"


def why_no_survivors() -> str | None:
    """Why the other ranks cannot outlive one that dies, or None where they can (ULFM, of Open MPI 5 and mpi4py 4.1)."""
    name = MPI.Get_library_version().split("\n")[0].split(",")[0].strip()
    if abi() == "openmpi" and hasattr(MPI.Comm, "Shrink"):
        if os.environ.get("OMPI_MCA_mpi_ft_enable", "0").lower() in ("1", "true", "t", "yes", "enabled"):
            return None
        return f"this launcher ends the job when a rank dies; start it with mpiexec --with-ft ulfm ({name})"
    return (
        f"this launcher ends the job when a rank dies; Open MPI 5 with mpiexec --with-ft ulfm does not (this is {name})"
    )


def library_path(name: str) -> Path:
    """Where the transport for an ABI is, if it was built."""
    return Path(_core.__file__).with_name(f"transport_{name}.so")


@functools.cache
def library() -> _core.MPILibrary:
    """The loaded transport; ImportError, in one sentence, when there is none for this MPI."""
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
