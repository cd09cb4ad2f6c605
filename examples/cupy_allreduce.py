"""An all-reduce of CuPy arrays, on NVIDIA's GPUs.

    mpiexec -n 4 python examples/cupy_allreduce.py

Each rank takes a GPU of its node, in turn. The call is in order with CuPy's stream: the program copies nothing and
synchronises nothing. Prints where the sum lies, after each rank has compared it with the sum that NumPy computes on the
host. Without CuPy, or without a GPU, it says so in one sentence and ends: nothing was computed then. See docs/gpu.md.
"""

import importlib.util
import sys

import numpy as np
from mpi4py import MPI

import collectives

comm = collectives.Communicator(MPI.COMM_WORLD)


def missing():
    """Why this rank can have no arrays on a GPU, in words; nothing if it can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed"
    import cupy

    try:
        return "" if cupy.cuda.runtime.getDeviceCount() else "there is no GPU"
    except cupy.cuda.runtime.CUDARuntimeError as e:
        return f"there is no GPU that works ({e})"


reasons = [reason for reason in comm.allgather(missing()) if reason]
if reasons:
    if comm.rank == 0:
        print(f"This example did nothing, on {len(reasons)} of {comm.size} ranks because {reasons[0]}.")
    sys.exit()

import cupy  # noqa: E402

local = comm.Split_type(MPI.COMM_TYPE_SHARED).rank
with cupy.cuda.Device(local % cupy.cuda.runtime.getDeviceCount()) as device:
    x = cupy.arange(1 << 20, dtype="f4") % 1000 + comm.rank
    total = cupy.empty_like(x)
    comm.Allreduce(x, total)
    mean = total / comm.size  # in order after the call, on the same stream
    expected = np.arange(1 << 20, dtype="f4") % 1000 + (comm.size - 1) / 2
    assert np.allclose(cupy.asnumpy(mean), expected)
    if comm.rank == 0:
        print(f"{comm.size} ranks; the sum is on GPU {device.id}, and is what the host computes")
