"""Builds the C kernels into a small shared library of their own and calls them through ctypes."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "csrc" / "kernels").glob("*.c"))
FLAGS = ["-O3", "-ffp-contract=off", "-std=c11", "-fPIC", "-Wall", "-Wextra", "-Werror"]
ISAS = ("baseline", "avx2", "avx512")
LIMITS = {"copy": 2, "stream": 2, "triad": 3}  # name: buffers that it touches


DTYPES = {
    "bool": np.dtype(bool),
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    **{name: np.dtype(name) for name in ("float32", "float64", "complex64", "complex128")},
    "float_int": np.dtype([("value", np.float32), ("index", np.intc)], align=True),
    "double_int": np.dtype([("value", np.float64), ("index", np.intc)], align=True),
    "long_int": np.dtype([("value", np.dtype("l")), ("index", np.intc)], align=True),
    "two_int": np.dtype([("value", np.intc), ("index", np.intc)], align=True),
    "short_int": np.dtype([("value", np.short), ("index", np.intc)], align=True),
    "long_double_int": np.dtype([("value", np.longdouble), ("index", np.intc)], align=True),
}


def compiler() -> str | None:
    """The C compiler: $CC, or cc or gcc from the PATH; None when there is none."""
    return os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")


def compiling(folder: Path, sources: list[Path], flags: list[str]) -> Callable[[], list[Path]]:
    """Begin to compile C files side by side; returns what waits for the object files."""
    running = [
        subprocess.Popen(["sh", "-c", '"$0" "$@" -o "$OBJECT.part" && mv "$OBJECT.part" "$OBJECT"',
                          compiler(), *flags, "-c", source], env={**os.environ, "OBJECT": str(target)})
        for source, target in zip(sources, objects_of(folder, sources), strict=True)
    ]  # fmt: skip

    def wait() -> list[Path]:
        if any([process.wait() for process in running]):
            raise RuntimeError("the kernels do not compile")
        return objects_of(folder, sources)

    return wait


def objects_of(folder: Path, sources: list[Path]) -> list[Path]:
    """The object files that :func:`compiling` makes of C files, each of which is there once it is complete."""
    return [folder / f"{source.stem}.o" for source in sources]


def compile_all(folder: Path, sources: list[Path], flags: list[str]) -> list[Path]:
    """Compile C files side by side; returns the object files."""
    return compiling(folder, sources, flags)()


def build(folder: Path, kernels: list[Path] | None = None) -> Path:
    """Link the kernels (objects, compiled here if need be) and the benchmarks' limits into a shared library."""
    library = Path(folder) / "libkernels.so"
    objects = compile_all(library.parent, SOURCES, FLAGS) if kernels is None else kernels
    limits = compile_all(library.parent, [ROOT / "tests" / "csrc" / "memory_limits.c"], FLAGS)
    subprocess.run([compiler(), "-shared", "-o", library, *objects, *limits], check=True)
    return library


def address(array: np.ndarray) -> int:
    """The address of an array's first element, for dtypes without a ctypes equivalent too."""
    return array.__array_interface__["data"][0]


class Kernels:
    """The functions of kernels.h, on NumPy arrays."""

    def __init__(self, library: Path):
        lib = self.lib = ctypes.CDLL(str(library))
        lookup, name = ctypes.c_void_p, ctypes.c_char_p
        for function, result, arguments in (
            ("coll_ndtypes", ctypes.c_int, []),
            ("coll_nops", ctypes.c_int, []),
            ("coll_dtype_name", name, [ctypes.c_int]),
            ("coll_op_name", name, [ctypes.c_int]),
            ("coll_dtype_size", ctypes.c_size_t, [ctypes.c_int]),
            ("coll_reduce2", lookup, [ctypes.c_int, ctypes.c_int]),
            ("coll_reducep", lookup, [ctypes.c_int, ctypes.c_int]),
            ("coll_reduce2_stream", lookup, [ctypes.c_int, ctypes.c_int]),
            ("coll_reducep_stream", lookup, [ctypes.c_int, ctypes.c_int]),
            ("coll_scale", lookup, [ctypes.c_int]),
            ("coll_stream_bytes", ctypes.c_size_t, [ctypes.c_size_t]),
            ("coll_isa", name, []),
            ("coll_isa_supported", ctypes.c_int, [name]),
            ("coll_isa_select", ctypes.c_int, [name]),
        ):
            getattr(lib, function).restype = result
            getattr(lib, function).argtypes = arguments
        for limit in LIMITS:
            getattr(lib, f"coll_limit_{limit}").argtypes = [lookup] * 3 + [ctypes.c_size_t]
        self.dtypes = [lib.coll_dtype_name(t).decode() for t in range(lib.coll_ndtypes())]
        self.ops = [lib.coll_op_name(op).decode() for op in range(lib.coll_nops())]

    def isas(self) -> list[str]:
        """The instruction sets that this processor has, the best one last."""
        return [isa for isa in ISAS if self.lib.coll_isa_supported(isa.encode())]

    def select(self, isa: str) -> None:
        """Take the functions of one instruction set from here on."""
        if self.lib.coll_isa_select(isa.encode()):
            raise ValueError(f"no instruction set {isa!r} here")

    def find(self, kind: str, dtype: str, op: str) -> int | None:
        """The address of a function (reduce2, reducep, and these with _stream), None where there is none."""
        return getattr(self.lib, f"coll_{kind}")(self.dtypes.index(dtype), self.ops.index(op))

    def function(self, kind: str, dtype: str, op: str):
        """A two-operand function (dst, left, right, n) of the selected instruction set; it stays valid."""
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        return prototype(self.find(kind, dtype, op))

    def reduce2(self, dtype, op, dst, left, right, *, stream=False):
        """dst = left op right."""
        function = self.function("reduce2_stream" if stream else "reduce2", dtype, op)
        function(address(dst), address(left), address(right), len(dst))

    def reducep(self, dtype, op, dst, src, *, stream=False):
        """Every array of dst = src[0] op src[1] op ..."""
        prototype = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        )
        function = prototype(self.find("reducep_stream" if stream else "reducep", dtype, op))
        targets = (ctypes.c_void_p * len(dst))(*map(address, dst))
        sources = (ctypes.c_void_p * len(src))(*map(address, src))
        function(targets, len(dst), sources, len(src), len(dst[0]))

    def scale(self, dtype, dst, src, p):
        """dst = src / p."""
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
        function = prototype(self.lib.coll_scale(self.dtypes.index(dtype)))
        function(address(dst), address(src), p, len(dst))

    def limit(self, name, dst, left, right):
        """One of LIMITS on whole buffers."""
        getattr(self.lib, f"coll_limit_{name}")(address(dst), address(left), address(right), dst.nbytes)
