"""Collectives on arrays of NVIDIA's GPUs: results against NumPy, and how fast both paths are.

    mpiexec -n 2 python benchmarks/gpu.py
    mpiexec -n 2 python benchmarks/gpu.py --check       exit 1 if a result is wrong, 77 if there is no GPU
    mpiexec -n 4 python benchmarks/gpu.py --mib 256 --json gpu.json

Ranks take the GPUs in turn and may share one. The limit of staging is the least of the rates that it consists of: the
copies down and up, and the all-reduce on the host. The limit of peers is the rate at which a copy on the GPU moves
bytes: an all-reduce of s bytes reads (2 - 1/p)s and writes s for each of p ranks, a copy reads and writes s. This needs
NVIDIA's driver only; with torch there are checks of its tensors, and of a training of a network on the GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import collectives
from collectives.cuda import driver
from collectives.cuda.lanes import lane_of
from collectives.files import write_json
from collectives.launch.usage import file_to_write

WORLD = MPI.COMM_WORLD
NO_GPU = 77
DTYPES = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
OPS = {
    "sum": (MPI.SUM, np.add),
    "prod": (MPI.PROD, np.multiply),
    "min": (MPI.MIN, np.minimum),
    "max": (MPI.MAX, np.maximum),
}
LENGTHS = (0, 1, 1000, 300_001, 3 << 20)  # the last two are for peers, too


class Device:
    """Memory of one GPU, by the driver's own functions."""

    def __init__(self, number: int):
        self.library = ctypes.CDLL(driver.driver().library)
        self.number, context = number, ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        self("cuCtxPushCurrent_v2", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; RuntimeError if it fails."""
        code = getattr(self.library, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")


class Array:
    """An array on a GPU, with CUDA's array interface; its work is on the default stream."""

    def __init__(self, device: Device, values: np.ndarray):
        self.device, self.shape, self.dtype, self.nbytes = device, values.shape, values.dtype, values.nbytes
        self._address = ctypes.c_size_t()
        device("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(max(1, self.nbytes)))
        self.put(values)

    def put(self, values: np.ndarray) -> None:
        """Copy values to the GPU."""
        values, size = np.ascontiguousarray(values), ctypes.c_size_t(self.nbytes)
        self.device("cuMemcpyHtoDAsync_v2", self._address, ctypes.c_void_p(values.ctypes.data), size, None)
        self.device("cuStreamSynchronize", None)

    def get(self) -> np.ndarray:
        """The values."""
        values, size = np.empty(self.shape, self.dtype), ctypes.c_size_t(self.nbytes)
        self.device("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(values.ctypes.data), self._address, size, None)
        self.device("cuStreamSynchronize", None)
        return values

    def free(self) -> None:
        """Give the memory back."""
        self.device("cuMemFree_v2", self._address)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (self._address.value if self.nbytes else 0, False),
            "version": 3, "strides": None, "stream": 1,
        }  # fmt: skip


def served(comm: collectives.Communicator, device: Device, n: int, call: Callable[[Any, Any], None]) -> bool:
    """Whether a call on arrays of the GPU gives the bytes that it gives on arrays of the host."""
    values = np.arange(n * comm.size) % 5.0 + comm.rank + 1
    target = np.zeros(n * comm.size)
    x, y = Array(device, values), Array(device, target)
    call(values, target)
    call(x, y)
    same = y.get().tobytes() == target.tobytes()
    x.free()
    y.free()
    return bool(same)


def reductions(comm: collectives.Communicator, device: Device) -> list[str]:
    """The reductions whose results are wrong, of all types, ops and lengths; they are exact in every order."""
    wrong = []
    for dtype in DTYPES:
        for name, (op, function) in OPS.items():
            if dtype[0] == "c" and name in ("min", "max"):
                continue
            for n in LENGTHS if dtype == "f4" else LENGTHS[:4]:
                every = [(np.arange(n) % 2 + (r == 0)).astype(dtype) for r in range(comm.size)]
                right = every[0]
                for other in every[1:]:
                    right = function(right, other)
                x, y = Array(device, every[comm.rank]), Array(device, np.zeros(n, dtype))
                comm.Allreduce(x, y, op)
                if not np.array_equal(y.get(), right):
                    wrong.append(f"allreduce {name} of {n} {dtype}")
                x.free()
                y.free()
    return wrong


def on_path(path: str, device: Device) -> collectives.Communicator:
    """A communicator whose long calls go by "peers", if the GPUs allow it, or by "staging"."""
    os.environ["COLLECTIVES_GPU_PATH"] = path
    comm = collectives.Communicator(WORLD)
    x = Array(device, np.ones(1 << 20))
    comm.Allreduce(MPI.IN_PLACE, x)  # finds out
    x.free()
    return comm


def movements(comm: collectives.Communicator, device: Device) -> list[str]:
    """The collectives whose results on the GPU are not those on the host."""
    part = lambda array, n: [array, n, MPI.DOUBLE]  # noqa: E731
    calls: dict[str, Callable[[int, Any, Any], None]] = {
        "bcast": lambda n, x, y: comm.Bcast(y if comm.rank else x),
        "reduce": lambda n, x, y: comm.Reduce(x, y),
        "gather": lambda n, x, y: comm.Gather(part(x, n), part(y, n) if comm.rank == 0 else None),
        "scatter": lambda n, x, y: comm.Scatter(part(x, n) if comm.rank == 0 else None, part(y, n)),
        "allgather": lambda n, x, y: comm.Allgather(part(x, n), part(y, n)),
        "alltoall": lambda n, x, y: comm.Alltoall(part(x, n), part(y, n)),
        "reduce_scatter_block": lambda n, x, y: comm.Reduce_scatter_block(part(x, n), part(y, n)),
    }
    return [
        f"{name} of {n} doubles"
        for name, call in calls.items() for n in LENGTHS[1:]
        if not served(comm, device, n, functools.partial(call, n))
    ]  # fmt: skip


def torch_sees_gpus() -> bool:
    """Whether torch is there, in a build for CUDA that finds a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def tensors(comm: collectives.Communicator, number: int) -> list[str]:
    """The checks of torch's tensors that fail: their own stream, work that is under way before and after the call."""
    import torch

    wrong = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with torch.cuda.device(number), torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(1 << 20, dtype=dtype, device="cuda")
            torch.cuda._sleep(10_000_000)
            x += comm.rank + 1
            comm.Allreduce(MPI.IN_PLACE, x)
            x += 1
            if not bool((x == comm.size * (comm.size + 1) // 2 + 1).all()):
                wrong.append(f"torch, {dtype}")
    return wrong


def trained(comm: collectives.Communicator, make: Callable[[], Any], device: str) -> Any:
    """The weights after five steps of a network on `device`, on whose stream work is under way in each step."""
    import torch

    from collectives import train

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8)]
    net = torch.nn.Sequential(*layers).double().to(device)
    opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    net, opt = train.distribute(net, opt, make(), comm=comm)
    for step in range(5):
        values = np.random.default_rng([step, comm.rank]).standard_normal((32, 64))
        opt.zero_grad()
        if device != "cpu":
            torch.cuda._sleep(10_000_000)
        net(torch.from_numpy(values).to(device)).square().mean().backward()
        opt.step()
    return torch.cat([p.detach().cpu().reshape(-1) for p in net.parameters()])


def training(comm: collectives.Communicator, number: int) -> list[str]:
    """The strategies by which a network on the GPU does not train as on the CPU."""
    import torch

    from collectives import train

    strategies: dict[str, Callable[[], Any]] = {
        "AllReduce": train.AllReduce,
        "AllReduce(shard=1)": lambda: train.AllReduce(shard=1),
        "LocalSGD": lambda: train.LocalSGD(2, merge_optimizer=True),
    }
    wrong = []
    for name, make in strategies.items():
        expected = trained(comm, make, "cpu")
        with torch.cuda.device(number), torch.cuda.stream(torch.cuda.Stream()):
            found = trained(comm, make, f"cuda:{number}")
        if not torch.allclose(found, expected, rtol=0, atol=1e-5):
            wrong.append(f"training by {name}")
    return wrong


def seconds(comm: collectives.Communicator, call: Callable[[], object], rounds: int = 7) -> float:
    """The median over rounds of the time of the slowest rank."""
    times = []
    for _ in range(rounds + 1):
        comm.Barrier()
        begin = time.perf_counter()
        call()
        times.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
    return statistics.median(times[1:])


def copies(comm: collectives.Communicator, array: Array) -> dict[str, float]:
    """Seconds to copy an array down and up, from and to pinned memory, and within the GPU, by all ranks at once."""
    lane, other = lane_of(array.device.number), Array(array.device, np.zeros(array.shape, array.dtype))
    address, to = (one.__cuda_array_interface__["data"][0] for one in (array, other))
    with lane:
        slot = lane.take(array.nbytes)

        def timed(copy: Callable[..., None], *arguments: int) -> float:
            def one() -> None:
                copy(*arguments, array.nbytes, lane.down)
                lane.driver.finish(lane.down)

            return seconds(comm, one)

        found = {
            "copy down": timed(lane.driver.to_host, slot.address, address),
            "copy up": timed(lane.driver.to_device, address, slot.address),
            "copy on the GPU": timed(lane.driver.copy, to, address),
        }
        lane.give(slot)
    other.free()
    return found


def speed(staged: collectives.Communicator, comm: collectives.Communicator, device: Device, mib: int) -> dict[str, Any]:
    """Times and rates of all-reduces by both paths, and of what they consist of."""
    n = (mib << 20) // 4
    x, small = Array(device, np.ones(n, "f4")), Array(device, np.ones(2, "f4"))
    host = comm.full(n, 1, np.float32)

    def end(by: collectives.Communicator, array: Array) -> None:
        by.Allreduce(MPI.IN_PLACE, array)
        device("cuStreamSynchronize", None)

    times = copies(comm, x)
    times["host"] = seconds(comm, lambda: comm.Allreduce(MPI.IN_PLACE, host))
    times["staging"] = seconds(comm, lambda: end(staged, x))
    times["staging, 8 bytes"] = seconds(comm, lambda: end(staged, small), 101)
    shares = {"staging": max(times["copy down"], times["copy up"], times["host"]) / times["staging"]}
    end(comm, x)
    if comm.last is not None and comm.last.algorithm == "peers":
        times["peers"] = seconds(comm, lambda: end(comm, x))
        shares["peers"] = (3 - 1 / comm.size) / 2 * times["copy on the GPU"] / times["peers"]
    x.free()
    small.free()
    return {"mib": mib, "seconds": times, "shares": shares}


def show(names: list[str], figures: dict[str, Any]) -> None:
    """Print the figures as a table."""
    print(f"{WORLD.size} ranks on {', '.join(sorted(set(names)))}")
    for what, time_of in figures["seconds"].items():
        rate = "" if "bytes" in what else f"{figures['mib'] / 1024 / time_of:10.2f} GiB/s"
        print(f"{what:18}{1e6 * time_of:14.1f} us{rate}")
    for path, share in figures["shares"].items():
        print(f"{path}: {share:.2f} of its limit")


def main() -> int:
    """Run the checks, then the measurement unless only checks are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="results only; exit 1 if one is wrong, 77 without a GPU")
    parser.add_argument("--mib", type=int, default=64, help="length of the vector in MiB (64)")
    parser.add_argument("--json", type=file_to_write, help="file for the figures")
    args = parser.parse_args()
    why = driver.why_not()
    if WORLD.allreduce(why is not None, MPI.LOR):
        print(f"rank {WORLD.rank}: no GPU: {why or 'on another rank'}", flush=True)
        return NO_GPU
    names = driver.driver().devices()
    device = Device(WORLD.rank % len(names))
    staged, comm = on_path("staging", device), on_path("peers", device)
    wrong = [f"{name} by staging" for name in reductions(staged, device) + movements(staged, device)]
    wrong += reductions(comm, device) + movements(comm, device)
    if WORLD.rank == 0:
        print(comm.explain("allreduce", 1 << 20, gpu=True), flush=True)
    if torch_sees_gpus():
        wrong += tensors(comm, device.number) + training(comm, device.number)
    elif WORLD.rank == 0:
        print("no torch that sees a GPU: its tensors and the training are not checked", flush=True)
    wrong = sorted(set(comm.allreduce(wrong)))
    if WORLD.rank == 0:
        print("\n".join(wrong) or "all results are right", flush=True)
    if not args.check:
        figures = speed(staged, comm, device, args.mib)
        if WORLD.rank == 0:
            show(names, figures)
            if args.json:
                write_json(args.json, {"ranks": WORLD.size, "devices": names, "wrong": wrong, **figures})
    staged.Free()
    comm.Free()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
