"""A stand-in for NVIDIA's driver (tests/csrc/stand_in_*.c): compiled, and arrays in the memory of its devices.

A program on ranks imports this module before `collectives`, with COLLECTIVES_CUDA_DRIVER in its environment.
"""

import atexit
import ctypes
import json
import os
import subprocess
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
VARIABLE, KERNELS = "COLLECTIVES_CUDA_DRIVER", "STAND_IN_KERNELS"
#: What the stand-in counts; all but PAGEABLE and LAUNCHES must be 0 at the end.
ALLOCATIONS, PINNED, STREAMS, EVENTS, REFERENCES, PAGEABLE, OPENED, MODULES, LAUNCHES = range(9)
SOURCES = [f"tests/csrc/stand_in_{part}.c" for part in ("cuda", "streams", "events")]
DEFAULT = 1  # the handle of the default stream


def build(folder: Path) -> dict[str, str]:
    """Compile the stand-in, with the kernels for the processor; returns the environment of programs that use it.

    What stands in for nvcc's files of kernels is in the folder that STAND_IN_KERNELS names.
    """
    import cuda_lib  # which needs more than the programs on ranks have

    from collectives.core import _cuda

    library = folder / "libstand_in_cuda.so"
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread"]
    host = cuda_lib.build_host(folder)
    subprocess.run(["cc", *flags, "-Icsrc", *SOURCES, host, "-lstdc++", "-o", library], cwd=ROOT, check=True)
    (folder / "kernels.fatbin").write_bytes(0xBA55ED50.to_bytes(4, "little") + bytes(60))
    index = {"nvcc": "none", "arguments": _cuda.ARGUMENTS, "kernels": _cuda.kernel_names(), "architectures": ["sm_0"]}
    (folder / "kernels.json").write_text(json.dumps(index))
    return {VARIABLE: str(library), KERNELS: str(folder), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}


class Driver:
    """The stand-in's functions, for a test: streams and memory of its own, failures on demand, counts."""

    def __init__(self, path: str):
        self.library = ctypes.CDLL(path)
        self.library.stand_in_count.restype = ctypes.c_long
        self("cuInit", 0)
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxPushCurrent_v2", context)

    def __call__(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        assert code == 0, (name, code)

    def stream(self, flags=0):
        made = ctypes.c_size_t()
        self("cuStreamCreate", ctypes.byref(made), flags)
        return made.value

    def count(self, kind):
        return self.library.stand_in_count(kind)

    def late(self, microseconds):
        """The longest time by which a piece of a stream's work is late."""
        self.library.stand_in_lateness(ctypes.c_long(microseconds))

    def fail(self, name, number, code):
        """Let the n-th call of a function from now on fail."""
        self.library.stand_in_fail(name.encode(), number, code)


class Array:
    """An array on a device with CUDA's array interface, in version 3: it names the stream that its work is on."""

    def __init__(self, values, stream=DEFAULT):
        values = np.asarray(values)
        self.shape, self.dtype, self.nbytes, self.stream = values.shape, values.dtype, values.nbytes, stream
        address = ctypes.c_size_t()
        driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, self.nbytes)))
        self.address = address.value
        self.fill(values)

    def fill(self, values):
        """Copy values to the device, in the order of the stream: that is, late."""
        values = np.ascontiguousarray(np.broadcast_to(np.asarray(values, self.dtype), self.shape))
        to, size = ctypes.c_size_t(self.address), ctypes.c_size_t(self.nbytes)
        driver("cuMemcpyHtoDAsync_v2", to, ctypes.c_void_p(values.ctypes.data), size, ctypes.c_size_t(self.stream))

    def get(self):
        """The values, as the stream sees them."""
        values = np.empty(self.shape, self.dtype)
        source, size = ctypes.c_size_t(self.address), ctypes.c_size_t(self.nbytes)
        driver("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(values.ctypes.data), source, size, ctypes.c_size_t(self.stream))
        return values

    def free(self):
        driver("cuMemFree_v2", ctypes.c_size_t(self.address))

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self.address if self.nbytes else 0, False),
            "version": 3, "strides": None, "stream": self.stream,
        }  # fmt: skip


class WithoutStream(Array):
    """An array with CUDA's array interface in version 2, without a stream."""

    @property
    def __cuda_array_interface__(self):
        found = super().__cuda_array_interface__
        del found["stream"]
        return {**found, "version": 2}


class _Tensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_size_t), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6, "c": 5}


class ByDLPack:
    """An array that only has DLPack; its library lets the stream that it is asked for wait for its own."""

    def __init__(self, values, stream=DEFAULT):
        self.array = Array(values, stream)
        self.fill, self.get, self.free = self.array.fill, self.array.get, self.array.free
        event = ctypes.c_size_t()
        driver("cuEventCreate", ctypes.byref(event), 2)
        self._event = event
        atexit.register(driver, "cuEventDestroy_v2", event)

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=None, **how):
        array, dtype = self.array, self.array.dtype
        if stream not in (None, -1):
            driver("cuEventRecord", self._event, ctypes.c_size_t(array.stream))
            driver("cuStreamWaitEvent", ctypes.c_size_t(stream), self._event, 0)
        self._shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
        shape = ctypes.addressof(self._shape)
        code = 4 if dtype.name == "bfloat16" else _CODES[dtype.kind]
        self._tensor = _Tensor(
            array.address, (2, 0), len(array.shape), code, 8 * dtype.itemsize, 1, shape, None, 0, None, None
        )
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(self._tensor), b"dltensor", None)


def use_kernels():
    """Let the library load the stand-in's kernels, whether those for devices are built or not."""
    from collectives.cuda import kernels

    kernels.FOLDER = Path(os.environ[KERNELS])


def _report():
    """Say at exit what the library has not given back; this module's own context is one reference."""
    left = [driver.count(kind) for kind in (ALLOCATIONS, PINNED, EVENTS, OPENED, MODULES, REFERENCES)]
    left[-1] -= 1
    print(f"left at exit: {left}", flush=True)


if VARIABLE in os.environ:
    driver = Driver(os.environ[VARIABLE])
    atexit.register(_report)
