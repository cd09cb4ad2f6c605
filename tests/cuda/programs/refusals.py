"""What calls on arrays of a GPU refuse, before anything is sent; the communicator can be used afterwards.

With the argument "off" the driver cannot be used.
"""

import ctypes
import os
import sys

import numpy as np
from mpi4py import MPI

import collectives

COMM = collectives.Communicator(MPI.COMM_WORLD)


class Interface:
    """An array with CUDA's interface as given."""

    def __init__(self, **given):
        self.__cuda_array_interface__ = {
            "shape": (4,), "typestr": "<f8", "version": 3, "strides": None, "stream": 1, **given,
        }  # fmt: skip


def refused(kind, words, call, *arguments, **options):
    """1 if a call raises an error of one kind in these words, else 0."""
    try:
        call(*arguments, **options)
    except kind as e:
        if words in str(e):
            return 1
        print("other words:", e, flush=True)
    else:
        print("no error:", words, flush=True)
    return 0


def off():
    """Without a driver arrays are refused with the reason, and nothing of the driver's is there."""
    array = Interface(data=(0xDEAD0000, False))
    assert "collectives.core._cuda" not in sys.modules
    done = refused(
        TypeError, "NVIDIA's driver cannot be used: /nowhere.so: cannot open", COMM.Allreduce, array, np.ones(4)
    )
    assert "none, since NVIDIA's driver cannot" in COMM.explain("allreduce", 8, gpu=True)
    return done


def on():
    import stand_in

    x, y = stand_in.Array(np.ones(4)), stand_in.Array(np.zeros(4))
    host, at = np.ones(4), x.address
    done = refused(ValueError, "4 elements, recvbuf 3", COMM.Iallreduce, x, np.ones(3))
    done += refused(TypeError, "with algorithm 'mpi'", COMM.Allreduce_init, x, y, algorithm="mpi")
    done += refused(TypeError, "with algorithm 'mpi'", COMM.Allreduce, x, y, algorithm="mpi")
    done += refused(ValueError, "no argument is an array on a GPU", COMM.Allreduce, host, np.ones(4), stream=1)
    done += refused(TypeError, "stream: expected a CUDA stream", COMM.Allreduce, x, y, stream="fast")
    done += refused(ValueError, "read-only", COMM.Allreduce, x, Interface(data=(at, True)))
    done += refused(ValueError, "strided", COMM.Allreduce, Interface(data=(at, False), strides=(16,), shape=(2,)), y)
    done += refused(ValueError, "mask", COMM.Allreduce, Interface(data=(at, False), mask=host), y)
    done += refused(ValueError, "no memory of a GPU", COMM.Allreduce, Interface(data=(4096, False)), y)
    done += refused(ValueError, "4 elements, recvbuf 3", COMM.Allreduce, x, np.ones(3))
    done += refused(TypeError, "sendbuf is of float64, recvbuf of float32", COMM.Allreduce, x, np.ones(4, "f4"))
    done += refused(ValueError, "overlap", COMM.Allreduce, [x, 2, MPI.DOUBLE], [x, 2, 1, MPI.DOUBLE])
    sparse = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    done += refused(TypeError, "gaps", COMM.Bcast, [x, 1, sparse])
    sparse.Free()
    done += refused(ValueError, "different GPUs, 0 and 1", COMM.Allreduce, x, on_another())
    with COMM.group():
        done += refused(TypeError, "moves arrays in host memory only", COMM.Allreduce, x, y)
    COMM.Allreduce(x, y, stream=1)
    assert (y.get() == COMM.size).all()
    assert COMM.explain("scan", 10 << 20, gpu=True).startswith("staging through pinned memory of the host in 3 pieces")
    assert COMM.explain("allreduce", 10 << 10, gpu=True).startswith("staging")
    assert COMM.explain("allreduce", 10 << 20, gpu=True).startswith("peers, who read each other's GPU memory, if")
    return done + mixed()


def on_another():
    """An array on the second GPU."""
    from stand_in import driver

    context, address = ctypes.c_void_p(), ctypes.c_size_t()
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), 1)
    driver("cuCtxPushCurrent_v2", context)
    driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(32))
    driver("cuCtxPopCurrent_v2", ctypes.byref(context))
    return Interface(data=(address.value, False))


def mixed():
    """A long vector, on a GPU on one rank only, is a mismatch that says why."""
    comm = collectives.Communicator(MPI.COMM_WORLD)
    x = np.ones(1 << 20)
    here = sys.modules["stand_in"].Array(x) if comm.rank == 0 else x
    words = "" if comm.rank else "on a GPU this call has 2 pieces"
    return refused(collectives.CollectiveError, words, comm.Scan, MPI.IN_PLACE, here, timeout=30)


done = off() if "off" in sys.argv else on()
print(f"{done} refusals", flush=True)
MPI.COMM_WORLD.Barrier()
os._exit(0)  # the communicator with the mismatch is broken, for which MPI_Finalize would abort
