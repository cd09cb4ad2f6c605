"""Schedules on the stand-in's device, as between nodes: messages go by an MPI that seems to take addresses on GPUs.

The stand-in's memory is a fault for MPI. So MPI gets the addresses under which the streams know it. First MPI claims
more than it can do: the process that puts it to the proof dies, and calls go through the host.
"""

import ctypes

import numpy as np
from mpi4py import MPI
from stand_in import Array, driver, use_kernels

import collectives
from collectives.communicator import device_direct
from collectives.cuda import direct, proof

WORLD = MPI.COMM_WORLD
SIZE, RANK = WORLD.size, WORLD.rank
NAMES = ("Allreduce", "Bcast", "Allgather", "Alltoall", "Reduce_scatter_block")
OPS = {"f4": ("SUM", "MAX"), "i8": ("PROD", "BXOR"), "c16": ("SUM",), "f2": ("MIN", "SUM"), "f8": ("AVG",)}


def communicator():
    made = collectives.Communicator(WORLD)
    made.timeout = 60
    made._enter().apart = "as if on several nodes"
    return made


def trial(comm, name, n, dtype, op, stream, by, algorithm=None):
    """1 if a call's result is wrong, or another path made it, else 0."""
    blocks_in = SIZE if name in ("Alltoall", "Reduce_scatter_block") else 1
    blocks_out = SIZE if name in ("Alltoall", "Allgather") else 1
    mine = ((np.arange(n * blocks_in) + RANK) % 3 + 1).astype(dtype)
    more = {"root": SIZE - 1} if name == "Bcast" else {}
    if op:
        more["op"] = collectives.AVG if op == "AVG" else getattr(MPI, op)
    right = mine.copy() if name == "Bcast" else np.zeros(n * blocks_out, dtype)
    send, recv = Array(mine, stream), Array(right, stream)
    for one, other in ((mine, right), (send, recv)):
        arguments = (other,) if name == "Bcast" else (one, other)
        getattr(comm, name)(*arguments, **more, algorithm=algorithm)
    found, how = recv.get(), comm.last.algorithm
    send.free()
    recv.free()
    if np.allclose(found, right) and how == by:
        return 0
    print("wrong:", name, n, dtype, op, how, flush=True)
    return 1


def every(stream, by):
    """All calls on a new communicator; the number of wrong ones, and what `explain` says."""
    comm, wrong = communicator(), 0
    for name in NAMES:
        reduces = name in ("Allreduce", "Reduce_scatter_block")
        for dtype, ops in OPS.items():
            for op in ops if reduces else [None]:
                wrong += trial(comm, name, 1003, dtype, op, stream, by)
    if by == "direct":
        rules = comm._enter().rules
        rules.forced = {"allreduce": "mpi"}  # what is no schedule goes through the host
        wrong += trial(comm, "Allreduce", 1003, "f4", "SUM", stream, "recursive_doubling")
        rules.forced = {}
        wrong += trial(comm, "Allreduce", 1003, "f2", "AVG", stream, "recursive_doubling")  # whose sum may be infinite
        for algorithm in ("ring", "recursive_doubling"):
            wrong += trial(comm, "Allreduce", 5001, "f8", "SUM", stream, by, algorithm)
    told = comm.explain("allreduce", 1 << 20, gpu=True)
    comm.Free()
    return wrong, told


def main():
    use_kernels()
    device_direct.LEAST = 1024
    driver.late(100)
    stream = driver.stream(1)
    communicators = communicator()
    assert communicators.explain("allreduce", 1 << 20, gpu=True).startswith("direct by MPI, ")
    communicators.Free()
    proof.claims = lambda: True
    comm = communicator()
    wrong = trial(comm, "Allreduce", 1003, "f4", "SUM", stream, "recursive_doubling")
    told = comm.explain("allreduce", 1 << 20, gpu=True)
    wrong += "not direct by MPI, since rank 0: a transfer on the GPU in a process of its own failed" not in told
    comm.Free()
    print(f"refuted: {wrong} wrong", flush=True)
    proof.why_not = lambda library, number: None
    alias = driver.library.stand_in_alias
    alias.restype, alias.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    direct.memory_of = lambda data: MPI.buffer.fromaddress(alias(data.address, len(data)), len(data))
    wrong, told = every(stream, "direct")
    wrong += not told.startswith("direct by MPI, ")
    print(f"direct: {wrong} wrong", flush=True)


main()
