"""Whether the MPI library takes addresses on GPUs: what it says, and one tiny transfer, in a process that may die.

``python -m collectives.cuda.proof DRIVER NUMBER`` is that process. It sends some bytes of a GPU to itself.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys

import numpy as np

from ..core import _cuda
from ..system import mpi_library

__all__ = ["claims", "why_not"]

_BYTES = 100_000  # more than MPIs send at once
_WAIT = 60  # seconds
#: What launchers tell the processes of a job; the process that transfers is a job of its own.
_JOB = ("OMPI_COMM_", "OMPI_UNIVERSE", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL")


def claims() -> bool | None:
    """Whether the MPI library says that it takes addresses on GPUs; None if it cannot be asked."""
    transport = mpi_library.library_path(mpi_library.abi())  # with which MPI's library is linked
    query = getattr(ctypes.CDLL(str(transport)), "MPIX_Query_cuda_support", None)
    return None if query is None else bool(query())


@functools.cache
def why_not(library: str, number: int) -> str | None:
    """Why the MPI library gets no addresses on the GPU ``number`` of the driver ``library``, or None; asked once."""
    if not claims():
        return "the MPI library does not say that it takes arrays on GPUs"
    env = {name: value for name, value in os.environ.items() if not name.startswith(_JOB)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    line = [sys.executable, "-m", __name__, library, str(number)]
    try:
        done = subprocess.run(line, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_WAIT)
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"a transfer on the GPU in a process of its own did not end: {e}"
    return (
        f"a transfer on the GPU in a process of its own failed: status {done.returncode}" if done.returncode else None
    )


def _transfer(library: str, number: int) -> bool:
    from mpi4py import MPI

    own = _cuda.CudaDriver(library)
    own.push(own.retain(number))
    stream = own.stream()
    given, found = np.arange(_BYTES).astype(np.uint8), np.zeros(_BYTES, np.uint8)
    source, target = own.allocate(_BYTES), own.allocate(_BYTES)
    own.to_device(source, given.ctypes.data, _BYTES, stream)
    own.to_device(target, found.ctypes.data, _BYTES, stream)
    own.finish(stream)
    there, here = (MPI.buffer.fromaddress(address, _BYTES) for address in (source, target))
    MPI.COMM_SELF.Sendrecv([there, MPI.BYTE], 0, 0, [here, MPI.BYTE], 0, 0)
    own.to_host(found.ctypes.data, target, _BYTES, stream)
    own.finish(stream)
    return bool(np.array_equal(given, found))


if __name__ == "__main__":
    sys.exit(0 if _transfer(sys.argv[1], int(sys.argv[2])) else 1)
