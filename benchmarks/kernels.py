"""Speed of the reduction kernels, compared with NumPy and with the bandwidth of memory.

    python benchmarks/kernels.py                       every dtype and op, in and out of cache
    python benchmarks/kernels.py --dtype float32 --op sum --size 64MiB --rounds 21
    python benchmarks/kernels.py --check               exit 1 when a target is missed

GB/s count two reads and one write. Every call is made from Python, the kernels' calls through ctypes. The time of the
same call on one element is subtracted. Targets: no dtype and op slower than NumPy; out of cache, sums of float32,
float16 and bfloat16 with 0.8 of the bandwidth of the fastest copy or triad. A record that misses a target is measured
again, for longer, and the second result counts.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))
import kernel_lib  # type: ignore[import-not-found]  # noqa: E402

from collectives.files import write_json  # noqa: E402
from collectives.launch.usage import file_to_write  # noqa: E402
from collectives.system import machine  # noqa: E402

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SIZES = ("16KiB", "256KiB", "64MiB")
NUMPY_OPS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
MEMORY_SUMS = ("float32", "float16", "bfloat16")
LIMIT_SHARE = 0.8
OUT_OF_CACHE = 32 << 20
SAMPLE_SECONDS = 5e-4


def parse_size(text: str) -> int:
    """Bytes of '4096', '16KiB', '64MiB'."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return int(text.removesuffix(unit)) * factor
    return int(text)


def aligned(nbytes: int) -> np.ndarray:
    """An array of bytes that starts on a page."""
    raw = np.empty(nbytes + 4096, np.uint8)
    start = -kernel_lib.address(raw) % 4096
    return raw[start : start + nbytes]


def fill(buffer: np.ndarray, dtype: np.dtype, seed: int) -> np.ndarray:
    """View a buffer as dtype, with ordinary values (no NaN, no subnormals)."""
    values: np.ndarray = np.random.default_rng(seed).integers(1, 100, 4096)
    view = buffer[: buffer.nbytes // dtype.itemsize * dtype.itemsize].view(dtype)
    if dtype.names:
        values = np.array([(v, i) for i, v in enumerate(values)], dtype)
    elif dtype.kind == "b":
        values = values > 50
    view[:] = np.resize(values.astype(dtype), len(view))
    return view


def medians(calls: dict, rounds: int) -> dict[Any, float]:
    """Median seconds of each call. The calls take turns, so that a slow moment of the machine affects all of them."""
    times = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        times[name] = max(1, min(1000, int(SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7))))
    samples: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(times[name]):
                call()
            samples[name].append((time.perf_counter() - start) / times[name])
    return {name: statistics.median(values) for name, values in samples.items()}


class Bench:
    """Three buffers of one size, and the kernels on them."""

    def __init__(self, kernels: kernel_lib.Kernels, size: str):
        self.kernels, self.size, self.nbytes = kernels, size, parse_size(size)
        self.buffers = [aligned(self.nbytes) for _ in range(3)]

    def limits(self, rounds: int) -> dict[str, float]:
        """GB/s of copies and of a triad."""
        for buffer in self.buffers:
            fill(buffer, np.dtype(np.float32), 0)
        calls = {name: lambda name=name: self.kernels.limit(name, *self.buffers) for name in kernel_lib.LIMITS}
        seconds = medians(calls, rounds)
        return {name: kernel_lib.LIMITS[name] * self.nbytes / seconds[name] / 1e9 for name in seconds}

    def record(self, dtype: str, op: str, rounds: int) -> dict:
        """GB/s of each instruction set, of NumPy if it has the op, and of copies and triad at the same time."""
        limits = self.limits(rounds)
        dst, left, right = (fill(buffer, kernel_lib.DTYPES[dtype], seed) for seed, buffer in enumerate(self.buffers))
        calls = {}
        for isa in self.kernels.isas():
            self.kernels.select(isa)
            function = self.kernels.function("reduce2", dtype, op)
            where = [kernel_lib.address(array) for array in (dst, left, right)]
            calls[isa] = functools.partial(function, *where, len(dst))
            calls[isa, "one"] = functools.partial(function, *where, 1)
        if op in NUMPY_OPS and not dst.dtype.names:
            ufunc = functools.partial(NUMPY_OPS[op], casting="unsafe")
            calls["numpy"] = functools.partial(ufunc, left, right, out=dst)
            calls["numpy", "one"] = functools.partial(ufunc, left[:1], right[:1], out=dst[:1])
        seconds = medians(calls, rounds)
        speeds = {
            name: 3 * dst.nbytes / max(seconds[name] - seconds[name, "one"], 1e-9) / 1e9
            for name in seconds
            if isinstance(name, str)
        }
        return {"size": self.size, "dtype": dtype, "op": op, "limits": limits, "GB/s": speeds}


def measure(arguments, kernels: kernel_lib.Kernels):
    """Yield one record for each size, dtype and op."""
    isas = kernels.isas()
    for size in arguments.size or SIZES:
        bench = Bench(kernels, size)
        print(f"\n{size} a buffer, GB/s; limits: ", end="")
        print(", ".join(f"{name} {value:.1f}" for name, value in bench.limits(arguments.rounds).items()))
        print(f"{'dtype':16}{'op':8}" + "".join(f"{isa:>10}" for isa in isas) + f"{'numpy':>10}{'ratio':>8}")
        for dtype in arguments.dtype or kernel_lib.DTYPES:
            for op in arguments.op or kernels.ops:
                if op == "avg" or not kernels.find("reduce2", dtype, op):
                    continue
                record = bench.record(dtype, op, arguments.rounds)
                if miss(record, isas[-1], arguments.tolerance):
                    record = bench.record(dtype, op, 4 * arguments.rounds)
                print_row(record, isas)
                yield record


def print_row(record: dict, isas: list[str]) -> None:
    """One line of the table; the ratio is the best instruction set's to NumPy's."""
    speeds = record["GB/s"]
    line = f"{record['dtype']:16}{record['op']:8}" + "".join(f"{speeds[isa]:10.1f}" for isa in isas)
    if "numpy" in speeds:
        line += f"{speeds['numpy']:10.1f}{speeds[isas[-1]] / speeds['numpy']:8.2f}"
    print(line, flush=True)


def miss(record: dict, isa: str, tolerance: float) -> str:
    """The target that a record misses; empty if it misses none."""
    what = f"{record['dtype']} {record['op']} at {record['size']}"
    speeds, limit = record["GB/s"], max(record["limits"].values())
    if "numpy" in speeds and speeds[isa] < (1 - tolerance) * speeds["numpy"]:
        return f"{what}: {speeds[isa]:.1f} GB/s, NumPy {speeds['numpy']:.1f}"
    memory_bound = record["op"] == "sum" and record["dtype"] in MEMORY_SUMS
    if memory_bound and parse_size(record["size"]) >= OUT_OF_CACHE and speeds[isa] < LIMIT_SHARE * limit:
        return f"{what}: {speeds[isa]:.1f} GB/s, limit {limit:.1f}"
    return ""


def main() -> int:
    """Measure, print, and compare with the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", help="bytes of a buffer, as 16KiB or 64MiB; may be repeated")
    parser.add_argument("--dtype", action="append", help="element type; may be repeated")
    parser.add_argument("--op", action="append", help="op, as sum; may be repeated")
    parser.add_argument("--rounds", type=int, default=11, help="rounds (%(default)s)")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the results here too")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--tolerance", type=float, default=0.05, help="noise in comparisons with NumPy")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kernels = kernel_lib.Kernels(kernel_lib.build(Path(folder)))
        records = list(measure(arguments, kernels))
        best = kernels.isas()[-1]
    if arguments.json:
        content = {"machine": machine.describe(), "numpy": np.__version__, "isa": best, "results": records}
        write_json(arguments.json, content)
    short = [line for record in records if (line := miss(record, best, arguments.tolerance))]
    for line in short:
        print("below target:", line)
    return 1 if arguments.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
