"""Builds the CUDA kernels for the processor (csrc/cuda/host.h) and calls them through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from kernel_lib import DTYPES, FLAGS, ROOT, address, compile_all

CXXFLAGS = [
    "-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", f"-I{ROOT / 'csrc'}",
]  # fmt: skip
SOURCES = 128
FITS, NO_TYPE, NO_OP, BAD_SOURCES, UNALIGNED = range(5)


def compiler() -> str | None:
    """The C++ compiler: $CXX, or c++ or g++ from the PATH; None when there is none."""
    return os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")


def build_host(folder: Path) -> Path:
    """Compile the kernels for the processor into an object file."""
    subprocess.run([compiler(), *CXXFLAGS, "-c", ROOT / "csrc/cuda/host.cpp", "-o", folder / "host.o"], check=True)
    return folder / "host.o"


def build(folder: Path) -> Path:
    """Compile the kernels and the C functions that launch them into a shared library."""
    library, host = folder / "libcuda_kernels.so", build_host(folder)
    objects = compile_all(folder, [ROOT / "csrc/cuda/kernels.c"], [*FLAGS, f"-I{ROOT / 'csrc'}"])
    subprocess.run([compiler(), "-shared", "-o", library, host, *objects], check=True)
    return library


class Args(ctypes.Structure):
    """struct coll_cuda_args."""

    _fields_ = [
        ("dst", ctypes.c_void_p), ("n", ctypes.c_size_t), ("head", ctypes.c_size_t), ("vectors", ctypes.c_size_t),
        ("p", ctypes.c_int), ("divisor", ctypes.c_int), ("src", ctypes.c_void_p * SOURCES),
    ]  # fmt: skip


class Launch(ctypes.Structure):
    """struct coll_cuda_launch."""

    _fields_ = [("kernel", ctypes.c_int), ("grid", ctypes.c_uint), ("block", ctypes.c_uint), ("args", Args)]


class CudaKernels:
    """The functions of csrc/cuda/kernels.h on NumPy arrays; types and ops are numbers of the C kernels."""

    def __init__(self, library: Path, ops: Sequence[str]):
        lib = self.lib = ctypes.CDLL(str(library))
        launch, array, number, size = ctypes.POINTER(Launch), ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        for function, result, arguments in (
            ("coll_cuda_reason", ctypes.c_char_p, [number]),
            ("coll_cuda_reducep", number, [launch, number, number, array, ctypes.POINTER(array), number, size]),
            ("coll_cuda_reduce2", number, [launch, number, number, array, array, array, size]),
            ("coll_cuda_scale", number, [launch, number, array, array, number, size]),
            ("coll_cuda_kernels", number, []),
            ("coll_cuda_kernel_name", ctypes.c_char_p, [number]),
            ("coll_cuda_able", number, [number, number]),
            ("coll_cuda_host_find", array, [ctypes.c_char_p]),
            ("coll_cuda_host_run", None, [array, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(Args)]),
        ):
            getattr(lib, function).restype = result
            getattr(lib, function).argtypes = arguments
        self.types, self.ops = list(DTYPES), list(ops)
        self.names = [lib.coll_cuda_kernel_name(k).decode() for k in range(lib.coll_cuda_kernels())]

    def reducep(self, dtype: str, op: str, dst: int, src: Sequence[int], n: int) -> tuple[int, Launch]:
        """What coll_cuda_reducep returns and fills in, for addresses."""
        launch, sources = Launch(), (ctypes.c_void_p * len(src))(*src)
        number = self.types.index(dtype), self.ops.index(op)
        return self.lib.coll_cuda_reducep(launch, *number, dst, sources, len(src), n), launch

    def reduce2(self, dtype: str, op: str, dst: int, left: int, right: int, n: int) -> tuple[int, Launch]:
        """What coll_cuda_reduce2 returns and fills in, for addresses."""
        launch, number = Launch(), (self.types.index(dtype), self.ops.index(op))
        return self.lib.coll_cuda_reduce2(launch, *number, dst, left, right, n), launch

    def scale(self, dtype: str, dst: int, src: int, divisor: int, n: int) -> tuple[int, Launch]:
        """What coll_cuda_scale returns and fills in, for addresses."""
        launch = Launch()
        return self.lib.coll_cuda_scale(launch, self.types.index(dtype), dst, src, divisor, n), launch

    def run(self, prepared: tuple[int, Launch], geometry: tuple[int, int] | None = None) -> Launch:
        """Run a launch, with its own numbers of blocks and threads or with others; returns it."""
        refusal, launch = prepared
        assert refusal == FITS, self.lib.coll_cuda_reason(refusal)
        kernel = self.lib.coll_cuda_host_find(self.names[launch.kernel].encode())
        assert kernel
        self.lib.coll_cuda_host_run(kernel, *(geometry or (launch.grid, launch.block)), launch.args)
        return launch

    def fold(self, dtype: str, op: str, dst: np.ndarray, src: Sequence[np.ndarray], geometry=None) -> Launch:
        """dst = src[0] op src[1] op ..."""
        return self.run(self.reducep(dtype, op, address(dst), [*map(address, src)], len(dst)), geometry)
