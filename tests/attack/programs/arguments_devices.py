"""Memory of devices, and ops that reduce nothing: refused by TypeError in every form, before anything is sent."""

import ctypes
import os

import numpy as np
from forms import forms
from mpi4py import MPI

import collectives
from collectives.arguments.calls import COLLECTIVES

os.environ["COLLECTIVES_CUDA_DRIVER"] = "no driver"  # read at the first array on a GPU
WORLD = MPI.COMM_WORLD
CUDA, METAL, CPU = 2, 8, 1


class Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


class OnDevice:
    """An array that says it is on a device: by a capsule, by __dlpack_device__, or both; its address is not memory."""

    dtype = np.dtype("f8")

    def __init__(self, capsule, device):
        self._shape = (ctypes.c_int64 * 1)(4)
        shape = ctypes.addressof(self._shape)
        self._tensor = Tensor(0xDEAD0000, (capsule, 0), 1, 2, 64, 1, shape, None, 0, None, None)
        if device is not None:
            self.__dlpack_device__ = lambda: (device, 0)

    def __dlpack__(self, **how):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


class InterfaceOnly:
    """What Numba's arrays offer."""

    dtype = np.dtype("f8")
    __cuda_array_interface__ = {  # noqa: RUF012
        "shape": (4,), "typestr": "<f8", "data": (0xDEAD0000, False), "version": 3, "strides": None, "stream": None,
    }  # fmt: skip


class Both(OnDevice):
    """What CuPy's arrays offer."""

    __cuda_array_interface__ = InterfaceOnly.__cuda_array_interface__


def on_devices():
    yield InterfaceOnly()
    yield OnDevice(CUDA, CUDA)
    yield OnDevice(METAL, METAL)
    yield OnDevice(CUDA, CPU)
    yield OnDevice(CPU, CUDA)
    yield OnDevice(CUDA, None)
    yield Both(CUDA, CUDA)


def arguments_with(collective, thing, side):
    """A call whose one side is a thing."""
    there = {"sendbuf": np.zeros(4), "recvbuf": np.zeros(4), "root": WORLD.rank, "op": MPI.SUM, "buf": thing}
    there["recvcounts"] = [4] + [0] * (WORLD.size - 1)
    if collective.name == "reduce_scatter_block":
        there["sendbuf"] = np.zeros(4 * WORLD.size)
    if collective.name == "reduce_scatter" and WORLD.rank:
        there["recvbuf"] = np.zeros(0)
    if thing is not None:
        there[side] = thing
    return {name: there[name] for name in collective.takes}


def refused(call, given, options, words):
    """Whether a call raises TypeError in these words."""
    try:
        call(**given, **options)
    except TypeError as e:
        return words in str(e)
    except (BufferError, ValueError, MPI.Exception) as e:
        print("wrong:", call, given, options, repr(e))
        return False
    return False


def main():
    comm = collectives.Communicator(WORLD)
    trials = wrong = 0
    free = MPI.Op.Create(lambda a, b, datatype: None)
    free.Free()
    for collective in COLLECTIVES.values():
        if collective.name == "barrier":
            continue
        cases = [
            (arguments_with(collective, spec, side), "memory only")
            for thing in on_devices()
            for spec in (thing, [thing, MPI.DOUBLE], [thing, [4, *[0] * (WORLD.size - 1)] if collective.vector else 4])
            for side in ("sendbuf", "recvbuf")
        ]  # fmt: skip
        if collective.reduces:
            cases += [
                ({**arguments_with(collective, None, "sendbuf"), "op": op}, "reduces nothing")
                for op in (MPI.REPLACE, MPI.NO_OP, MPI.OP_NULL, free)
            ]
            cases += [({**arguments_with(collective, None, "sendbuf"), "op": MPI.MINLOC}, "does not apply")]
        for given, words in cases:
            for call in forms(comm, collective):
                for options in ({}, {"algorithm": "mpi"}, {"deterministic": True}):
                    trials += 1
                    wrong += not refused(call, given, options, words)
    x = np.ones(4)
    comm.Allreduce(MPI.IN_PLACE, x)
    wrong += (x != WORLD.size).any()
    print(f"attack: {trials} trials, {wrong} wrong")


main()
