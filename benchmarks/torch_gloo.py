"""Compares `collectives` and Gloo in one job: torch.distributed's all_reduce and a step of DistributedDataParallel.

    make build .venvs/torch/ready
    export PATH=$PWD/.venvs/torch/bin:$PATH PYTHONPATH=$PWD
    mpiexec -n 2 python benchmarks/torch_gloo.py
    mpiexec -n 2 python benchmarks/torch_gloo.py --sizes 8,1Mi --rounds 31
    mpiexec -n 2 python benchmarks/torch_gloo.py --check --json FILE      exit 1 when a target is missed
    mpiexec -n 4 --host A,B,C,D python benchmarks/torch_gloo.py --sizes 1Ki,1Mi      between hosts

Both backends have a group of their own over the same processes. In every round the two take turns at each size and each
model, in an order drawn for that round: a warm-up, a barrier, a batch of calls of at least --batch ms (for steps, ten
times that). The time of a batch is the mean time of a call, the largest over the ranks. A ratio is our time divided by
Gloo's. Ratios are taken round by round; shown are their median, and the 95 % confidence interval of that median.
Tensors are ordinary float32 tensors, reduced in place.

A step of DistributedDataParallel is forward, backward and SGD, on a batch of 64 of random 8 x 8 images for each rank.
A row `16x256Ki` is 16 asynchronous all_reduces of 256 KiB that begin one after the other, with NumPy work after each
begin, and then a wait for all; the work takes about as long as Gloo's calls take without it. Between hosts every ratio
must be at most 1, and Gloo uses the first network device but the loopback device, unless GLOO_SOCKET_IFNAME names one.
"""

from __future__ import annotations

import argparse
import copy
import functools
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import _peers_report as report
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn

import collectives.torch  # noqa: F401  registers the backend
from collectives.bench.overlap import Work
from collectives.files import write_json
from collectives.launch.usage import file_to_write
from collectives.system import machine

NAMES = ("collectives", "gloo")
SMALL = 1 << 20  # bytes; up to this size the first of the two targets for the mean holds
MOST = {"small": 0.08, "large": 0.3}  # on one host
WARM_UP = 2  # calls before a batch
WORK = Work()
Groups = dict[str, Any]
Times = dict[str, list[float]]  # of each backend, seconds, by rounds


def mlp() -> nn.Module:
    """A perceptron with two hidden layers of 1024 units."""
    layers = [nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
    return nn.Sequential(*layers)


def cnn() -> nn.Module:
    """A network of two convolutions and two dense layers."""
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)]
    return nn.Sequential(*convolutions, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.Linear(64, 10))


def between_hosts() -> bool:
    """Whether the ranks are on several hosts."""
    near = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    several = MPI.COMM_WORLD.allreduce(near.size < MPI.COMM_WORLD.size, MPI.LOR)
    near.Free()
    return several


def groups(hosts: bool) -> Groups:
    """A group of each backend over all ranks of the job; ours is the default one. ``hosts``: there are several."""
    if hosts:
        device = next(name for _, name in socket.if_nameindex() if name != "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", device)
    dist.init_process_group("collectives")
    return {"collectives": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}


def all_reduce(nbytes: int, group: Any) -> Callable[[], None]:
    """An all_reduce whose result has been checked once."""
    tensor = torch.full((nbytes // 4,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    if not torch.all(tensor == sum(range(1, dist.get_world_size() + 1))):
        raise AssertionError(f"{nbytes} bytes: a wrong sum")
    tensor.zero_()

    def call() -> None:
        dist.all_reduce(tensor, group=group)

    return call


def step(model: nn.Module, group: Any) -> Callable[[], None]:
    """A training step of a model of its own."""
    net = nn.parallel.DistributedDataParallel(copy.deepcopy(model), process_group=group)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.rand(64, 1, 8, 8), torch.randint(10, (64,))

    def call() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()

    return call


def buckets(count: int, nbytes: int, units: int, group: Any) -> Callable[[], None]:
    """A batch of asynchronous all_reduces with ``units`` of work between their begins and the wait for all."""
    tensors = [torch.zeros(nbytes // 4) for _ in range(count)]

    def call() -> None:
        works = []
        for i, tensor in enumerate(tensors):
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
            WORK.do(units * (i + 1) // count - units * i // count)
        for work in works:
            work.wait()

    return call


def work_beside(count: int, nbytes: int, gloo: Any) -> int:
    """Units of work that take all ranks together about as long as Gloo's calls of such a batch."""
    idle = batch(buckets(count, nbytes, 0, gloo), 5, gloo)
    probe = max(1, round(idle / WORK.seconds / 10))
    return max(1, round(probe * idle / batch(lambda: WORK.do(probe), 3, gloo)))


def slowest(seconds: float) -> float:
    """The largest value of all ranks."""
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def batch(call: Callable[[], None], count: int, group: Any) -> float:
    """Mean seconds of a call, the largest over the ranks."""
    for _ in range(WARM_UP):
        call()
    dist.barrier(group)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return slowest((time.perf_counter() - begin) / count)


def compare(calls: dict[str, Callable[[], None]], of: Groups, rounds: int, least: float) -> Times:
    """The seconds of a call of both backends, by rounds; a batch takes at least ``least`` seconds."""
    counts: dict[str, int] = {}
    times: Times = {name: [] for name in calls}
    for name, call in calls.items():
        counts[name] = max(1, round(least / max(batch(call, 3, of[name]), 1e-7)))
        counts[name] = max(1, round(least / batch(call, counts[name], of[name])))
    for number in range(rounds):
        for name in random.Random(number).sample(list(calls), len(calls)):  # the same on all ranks
            times[name].append(batch(calls[name], counts[name], of[name]))
    return times


def line(what: str, times: Times) -> str:
    """A row of the table."""
    ours, gloo = (report.micro(statistics.median(times[name])) for name in NAMES)
    return f"{what:>10}{ours:>12}{gloo:>12}   {report.ratio(times['collectives'], times['gloo'])}"


def targets(results: dict[str, dict[str, Times]], hosts: bool) -> list[report.Target]:
    """The targets of the ratios; ``hosts``: between hosts."""
    of = {
        kind: {what: report.ratio(times["collectives"], times["gloo"]) for what, times in found.items()}
        for kind, found in results.items()
    }
    goals = []
    for kind, ratios in of.items():
        worst = max(ratios, key=lambda what: ratios[what].median, default=None)
        if worst is not None or not hosts:
            value = ratios[worst].median if worst else None
            goals.append(report.Target(kind, f"{kind}: highest ratio (at {worst})", value, 1.0))
    parts: dict[str, list[float]] = {"small": [], "large": []}
    for what, ratio in of["all_reduce"].items():
        parts["small" if report.parse_size(what) <= SMALL else "large"].append(ratio.median)
    for part, words in (("small", "up to 1Mi"), ("large", "above 1Mi")):
        mean = statistics.geometric_mean(parts[part]) if parts[part] else None
        if not hosts:
            goals.append(report.Target("all_reduce", f"all_reduce: geometric mean {words}", mean, MOST[part]))
    return goals


def measure(args: argparse.Namespace, of: Groups) -> dict[str, dict[str, Times]]:
    """Measure everything; rank 0 prints each result when it is found."""
    results: dict[str, dict[str, Times]] = {"all_reduce": {}, "buckets": {}, "DDP": {}}

    def run(kind: str, what: str, make: Callable[[Any], Callable[[], None]], least: float) -> None:
        found = compare({name: make(of[name]) for name in NAMES}, of, args.rounds, least)
        results[kind][what] = found
        if dist.get_rank() == 0:
            print(line(what, found), flush=True)

    if dist.get_rank() == 0:
        print(f"{kind_of_machine()}\n{'':>10}{'ours':>12}{'gloo':>12}   ours/gloo [95 %], us, {args.rounds} rounds")
    for nbytes in args.sizes:
        run("all_reduce", report.size_name(nbytes), functools.partial(all_reduce, nbytes), args.batch / 1e3)
    for count, nbytes in args.buckets:
        units = work_beside(count, nbytes, of["gloo"])
        what = f"{count}x{report.size_name(nbytes)}"
        run("buckets", what, functools.partial(buckets, count, nbytes, units), args.batch / 1e2)
    for name in args.models:
        torch.manual_seed(1)
        model = {"mlp": mlp, "cnn": cnn}[name]()
        run("DDP", f"DDP {name}", functools.partial(step, model), args.batch / 1e2)
    return results


def kind_of_machine() -> str:
    """A description of the machine: processor, ranks, torch."""
    return f"{machine.kind()}; {dist.get_world_size()} ranks; torch {torch.__version__}"


def sizes(text: str) -> list[int]:
    """Sizes between commas, ascending."""
    return sorted({report.parse_size(word) for word in text.split(",")})


def batches(text: str) -> list[tuple[int, int]]:
    """Batches between commas, as 16x256Ki: number of calls and bytes of each."""
    pairs = [word.split("x") for word in text.split(",") if word]
    return [(int(count), report.parse_size(size)) for count, size in pairs]


def options(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", type=sizes, default=[8 << i for i in range(24)], help="lengths in bytes: 8,16Ki,64Mi"
    )
    parser.add_argument(
        "--models",
        type=lambda text: text.split(",") if text else [],
        default=["mlp", "cnn"],
        help="networks: mlp,cnn (both)",
    )
    parser.add_argument("--buckets", type=batches, default=[(16, 256 << 10), (64, 64 << 10)], help="16x256Ki,64x64Ki")
    parser.add_argument("--rounds", type=int, default=15, help="rounds (%(default)s)")
    parser.add_argument("--batch", type=float, default=5.0, help="milliseconds of a batch, at least")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--json", type=file_to_write, help="file for all that was found")
    args = parser.parse_args(words)
    if unknown := set(args.models) - {"mlp", "cnn"}:
        parser.error(f"--models: {', '.join(sorted(unknown))}: neither mlp nor cnn")
    if args.rounds < 1 or args.batch <= 0:
        parser.error("--rounds and --batch: positive numbers")
    return args


def main() -> int:
    """Measure and print; 1 when a target is missed and --check is given."""
    args = options(None)
    torch.set_num_threads(1)
    hosts = between_hosts()
    results = measure(args, groups(hosts))
    goals = targets(results, hosts)
    if dist.get_rank() == 0:
        print("", *goals, sep="\n")
        if args.json:
            found = {
                "machine": machine.describe(),
                "torch": torch.__version__,
                "ranks": dist.get_world_size(),
                "results": results,
            }
            write_json(args.json, found | {"targets": [g._asdict() for g in goals]})
    dist.destroy_process_group()
    return int(args.check and any(goal.verdict != "PASS" for goal in goals))


if __name__ == "__main__":
    sys.exit(main())
