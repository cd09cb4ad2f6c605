"""Calls whose results are wrong or unexpected with some MPI libraries, and the same calls with this library.

    mpiexec -n 4 python examples/pitfalls.py

Every line of the output is measured on the MPI that runs the program. See docs/pitfalls.md.
"""

import ctypes
import sys

import numpy as np
from mpi4py import MPI

import collectives

PLAIN = MPI.COMM_WORLD
OURS = collectives.Communicator(PLAIN)
RANK, SIZE = PLAIN.rank, PLAIN.size


def show(name, measure):
    """Print one line: the result with the MPI library, and the result with this library."""
    found = []
    for comm in (PLAIN, OURS):
        try:
            found.append(str(measure(comm)))
        except (TypeError, ValueError, KeyError, BufferError, MPI.Exception) as e:
            found.append(f"{type(e).__name__}")
        PLAIN.Barrier()
    if RANK == 0:
        print(f"{name:44} {found[0]:24} {found[1]}", flush=True)


def small_integers(comm):
    """100 + 100 + 0 + 0 in int8, in vectors of two lengths. A sum of int8 wraps around, so both results must be -56."""
    values = []
    for n in (4, 100):
        result = np.zeros(n, np.int8)
        comm.Allreduce(np.full(n, 100 if RANK < 2 else 0, np.int8), result)
        values.append(int(result[0]))
    return f"{values[0]}, {values[1]}"


class BFloat16:
    """A bfloat16 vector that is exported by DLPack, as PyTorch exports its tensors."""

    def __init__(self, values):
        self.bits = (np.asarray(values, "f4").view("u4") >> 16).astype("u2")

    def __dlpack_device__(self):
        return self.bits.__dlpack_device__()

    def __dlpack__(self):
        capsule = self.bits.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = 4  # DLPack's code of bfloat16
        return capsule

    def __getitem__(self, i):
        return (self.bits.astype("u4") << 16).view("f4")[i]


def brain_float(comm):
    """1.5 on every rank, as bfloat16."""
    result = BFloat16(np.zeros(8))
    comm.Allreduce(BFloat16(np.full(8, 1.5)), result)
    return f"{result[0]:.3g}"


def numbers(n):
    """The first n of a fixed sequence of float32 numbers, whose sum depends on the order of addition."""
    chance = np.random.default_rng(RANK)
    return (chance.standard_normal(60_000) * 10.0 ** chance.integers(-3, 4, 60_000)).astype("f4")[:n]


def total(comm, values):
    """The element-wise sum of ``values`` over the ranks; with this library in rank order."""
    result = np.zeros_like(values)
    if comm is OURS:
        comm.Allreduce(values, result, deterministic=True)
    else:
        comm.Allreduce(values, result)
    return result


def bits_and_length(comm):
    """How many of 2000 sums have other bits when they are part of a longer vector."""
    values, places = numbers(60_000), (10_000, 50_000)
    parts = [total(comm, values[i : i + 1000]) for i in places]
    whole = [total(comm, values)[i : i + 1000] for i in places]
    differ = np.concatenate(parts).view("u4") != np.concatenate(whole).view("u4")
    return f"{differ.sum()} of 2000"


def bits_and_buckets(comm):
    """How many sums have other bits when the vector is sent in pieces, as gradients in buckets are."""
    values = numbers(60_000)
    pieces = np.concatenate([total(comm, piece) for piece in np.split(values, [50, 1000, 20_000])])
    differ = total(comm, values).view("u4") != pieces.view("u4")
    return f"{differ.sum()} of 60000"


def kept_alive(comm):
    """Whether a non-blocking reduction keeps a reference to the array that it still has to read."""
    values, result = np.ones(1000), np.zeros(1000)
    before = sys.getrefcount(values)
    request = comm.Iallreduce(values, result)
    held = sys.getrefcount(values) > before
    request.Wait()
    return "yes" if held else "no"


if RANK == 0:
    print(MPI.Get_library_version().split("\n")[0].split(",")[0].strip(), f"on {SIZE} ranks\n")
    print(f"{'':44} {'as it is':24} with collectives")
show("int8, 100 + 100: 4 elements, 100 elements", small_integers)
show(f"bfloat16, 1.5 on each rank ({1.5 * SIZE})", brain_float)
show("bits that change with the length", bits_and_length)
show("bits that change with the buckets", bits_and_buckets)
show("Iallreduce keeps the array it reads", kept_alive)
OURS.Free()
