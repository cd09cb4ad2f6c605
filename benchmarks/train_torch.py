"""Compares the step time of `train.distribute` with other ways to train a torch network on all ranks, in one job.

    mpiexec -n 2 python benchmarks/train_torch.py
    mpiexec -n 2 python benchmarks/train_torch.py --models mlp17 --rounds 21
    mpiexec -n 2 python benchmarks/train_torch.py --check --json FILE      exit 1 unless train is the fastest

Contestants: `train` (an all-reduce of buckets on the heap), `ddp` (DistributedDataParallel on the backend
`collectives`, with heap_hook), `hvd` (collectives.horovod), `gloo` (DistributedDataParallel on Gloo). A step is
forward, backward and SGD with momentum. All contestants get the same data, and must end with the same parameters.

In every round they take turns, in an order drawn for that round: a step to warm up, a barrier, a batch of steps of at
least --batch ms. The time of a batch is the mean time of a step, the largest over the ranks. Ratios are taken round by
round; shown are their medians, and the 95 % confidence intervals of these. `train` misses its target if such an
interval lies above 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _peers_report as report
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn

import collectives
import collectives.horovod as hvd
import collectives.torch
from collectives import train
from collectives.system import machine

Step = Callable[[], None]
Make = Callable[[nn.Module, Any], tuple[nn.Module, Step]]
CHECKED = 3  # steps after which the parameters of all contestants must be the same
SIZES = {"mlp17": (256, *[1024] * 5, 10), "mlp100": (256, *[2470] * 5, 10)}  # 17 and 100 MB of gradients
BATCHES = {"mlp17": 32, "mlp100": 32, "cnn": 16}


def mlp(sizes: Sequence[int]) -> nn.Module:
    """A perceptron with these numbers of units."""
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    """Four convolutions with batch normalization and two dense layers, for images of 32 x 32 in 3 colours."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))


def network(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network, and this rank's batch."""
    torch.manual_seed(1)
    net = cnn() if name == "cnn" else mlp(SIZES[name])
    torch.manual_seed(2 + dist.get_rank())
    shape = (3, 32, 32) if name == "cnn" else (SIZES[name][0],)
    return net, torch.randn(BATCHES[name], *shape), torch.randint(10, (BATCHES[name],))


def optimizer(net: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all contestants."""
    return torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def loop(net: nn.Module, opt: Any, x: torch.Tensor, y: torch.Tensor) -> Step:
    """A step of the loop that all contestants share."""

    def step() -> None:
        opt.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        opt.step()

    return step


def by_train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, comm: Any) -> tuple[nn.Module, Step, Any]:
    """A copy of the network that `train.distribute` trains, its step, and the optimizer."""
    net = copy.deepcopy(model)
    net, opt = train.distribute(net, optimizer(net), train.AllReduce(), comm=comm)
    return net, loop(net, opt, x, y), opt


def by_ddp(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, group: Any, hook: Any = None, **options: Any
) -> tuple[nn.Module, Step]:
    """A copy of the network that DistributedDataParallel trains, and its step."""
    net = copy.deepcopy(model)
    wrapped = nn.parallel.DistributedDataParallel(net, process_group=group, gradient_as_bucket_view=True, **options)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return net, loop(wrapped, optimizer(net), x, y)


def contestants(model: nn.Module, x: torch.Tensor, y: torch.Tensor, comm: Any, gloo: Any) -> dict[str, Any]:
    """The network and the step of each contestant, by name."""
    net, step, _ = by_train(model, x, y, comm)
    found = {
        "train": (net, step),
        "ddp": by_ddp(model, x, y, dist.group.WORLD, collectives.torch.heap_hook),
        "gloo": by_ddp(model, x, y, gloo),
    }
    net = copy.deepcopy(model)
    opt = hvd.DistributedOptimizer(optimizer(net), net.named_parameters())
    found["hvd"] = (net, loop(net, opt, x, y))
    return found


def check(found: dict[str, Any]) -> None:
    """Raise AssertionError unless all contestants compute the same."""
    for _ in range(CHECKED):
        for _, step in found.values():
            step()
    expected = [p.detach() for p in found["gloo"][0].parameters()]
    for name, (net, _) in found.items():
        for p, q in zip(net.parameters(), expected, strict=True):
            if not torch.allclose(p, q, rtol=1e-3, atol=1e-5):
                raise AssertionError(f"{name}: other parameters than gloo's")


def batch(step: Step, count: int, comm: Any) -> float:
    """Mean seconds of a step, the largest over the ranks."""
    step()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    longest: float = comm.allreduce((time.perf_counter() - begin) / count, op=MPI.MAX)
    return longest


def measure(found: dict[str, Any], rounds: int, least: float, comm: Any) -> dict[str, list[float]]:
    """The seconds of a step of each contestant, by rounds; a batch takes at least ``least`` seconds."""
    counts = {name: max(1, round(least / batch(step, 1, comm))) for name, (_, step) in found.items()}
    times: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds):
        for name in random.Random(number).sample(list(found), len(found)):  # the same on all ranks
            times[name].append(batch(found[name][1], counts[name], comm))
    return times


def row(what: str, times: dict[str, list[float]]) -> str:
    """A row of the table."""
    medians = "".join(f"{statistics.median(values) * 1e3:9.2f}" for values in times.values())
    ratios = "".join(f"{report.ratio(times['train'], times[n])!s:>20}" for n in times if n != "train")
    return f"{what:>8}{medians}{ratios}"


def missed(results: dict[str, dict[str, list[float]]]) -> list[str]:
    """Where another contestant is faster than train beyond the noise."""
    return [
        f"{what}: {name} is faster, train/{name} {found}"
        for what, times in results.items()
        for name in times
        if name != "train" and (found := report.ratio(times["train"], times[name])).low > 1
    ]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="mlp17,mlp100,cnn", help="networks (%(default)s)")
    parser.add_argument("--rounds", type=int, default=11, help="rounds (%(default)s)")
    parser.add_argument("--batch", type=float, default=200.0, help="milliseconds of a batch, at least (%(default)s)")
    parser.add_argument("--check", action="store_true", help="exit 1 unless train is the fastest within the noise")
    parser.add_argument("--json", type=Path, help="file for all that was found")
    args = parser.parse_args()
    if unknown := set(args.models.split(",")) - {*SIZES, "cnn"}:
        parser.error(f"--models: unknown: {', '.join(sorted(unknown))}")
    if args.rounds < 1 or args.batch <= 0:
        parser.error("--rounds and --batch: positive numbers")
    return args


def main() -> int:
    """Measure and print; 1 when a target is missed and --check is given."""
    args = options()
    torch.set_num_threads(1)
    comm = collectives.Communicator(MPI.COMM_WORLD)
    hvd.init()
    gloo = dist.new_group(backend="gloo")
    results: dict[str, dict[str, list[float]]] = {}
    for what in args.models.split(","):
        net, x, y = network(what)
        found = contestants(net, x, y, comm, gloo)
        check(found)
        results[what] = measure(found, args.rounds, args.batch / 1e3, comm)
        if comm.rank == 0:
            if len(results) == 1:
                names = "".join(f"{name:>9}" for name in found)
                ratios = "".join(f"{'train/' + name:>20}" for name in found if name != "train")
                print(f"{machine.kind()}; {comm.size} ranks; torch {torch.__version__}; ms of a step")
                print(f"{'':8}{names}{ratios}")
            print(row(what, results[what]), flush=True)
    wrong = missed(results)
    if comm.rank == 0:
        print(*wrong, sep="\n")
        if args.json:
            args.json.write_text(json.dumps({"machine": machine.describe(), "results": results}, indent=1) + "\n")
    hvd.shutdown()
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
