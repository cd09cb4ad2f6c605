"""Training strategies: accuracy, seconds, steps and bytes of each on scikit-learn's digits, sorted by label.

    mpiexec -n 4 python benchmarks/strategies.py
    mpiexec -n 4 python benchmarks/strategies.py --ways "AllReduce();LocalSGD(8);NoComm()" --epochs 50

Each rank holds a part of the digits sorted by label, so that alone it learns some of the labels only. Every strategy
trains the same perceptron from the same parameters with as many samples, once for each seed. `accuracy` is the median
over the seeds, with the lowest and the highest one, of the mean of the ranks on the test digits after training has
ended. `steps` are those of a rank, `bytes` what a rank hands to collectives and messages in a step, `seconds` the
training of one seed, the median.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.blas_threads import limit_threads
from collectives.train.cli.traffic import Traffic, counted

WORLD = MPI.COMM_WORLD
WAYS: dict[str, Callable[[], train.Strategy]] = {
    "AllReduce()": train.AllReduce,
    "NoComm()": train.NoComm,
    "LocalSGD(8)": lambda: train.LocalSGD(8),
    "DiLoCo(8)": lambda: train.DiLoCo(8),
    "FedAvg(2,0.75)": lambda: train.FedAvg(2, 0.75),
    "EASGD(1)": lambda: train.EASGD(1),
    "NeighborAveraging()": train.NeighborAveraging,
    "PushSum()": train.PushSum,
    "ADPSGD()": train.ADPSGD,
}


class Result(NamedTuple):
    """What one training gave."""

    accuracy: float
    seconds: float
    steps: int
    bytes_of_step: float


def run(way: str, seed: int, data: train.Dataset, comm: Any, args: argparse.Namespace) -> Result:
    """Train once. Collective."""
    traffic = Traffic()
    loader = train.Loader((data.x_train, data.y_train), args.batch, seed=seed, comm=comm, shard="sorted")
    net = train.mlp(data.x_train.shape[1:], data.classes, rng=np.random.default_rng(seed))
    opt = train.SGD(net.parameters(), args.lr, momentum=args.momentum)
    net, opt = train.distribute(net, opt, WAYS[way](), comm=counted(comm, traffic))
    before = traffic.bytes
    rate = train.schedules.Warmup(args.lr, 3 * loader.samples, args.lr / comm.size)
    job = train.Run(comm=comm, state={"opt": opt}, progress="lines", lr=rate)
    loss_fn = train.CrossEntropyLoss()
    for x, y in job.steps(loader, epochs=args.epochs):
        opt.zero_grad()
        loss_fn(net(x), y).backward()
        opt.step()
    sent = (traffic.bytes - before) / job.step
    accuracy = train.evaluate(net, data.x_test, data.y_test, comm=comm, replicated=False)["accuracy"]
    return Result(accuracy, comm.allreduce(job.seconds, op=MPI.MAX), job.step, comm.allreduce(sent, op=MPI.MAX))


def show(way: str, results: list[Result]) -> None:
    """Print a row."""
    found = [result.accuracy for result in results]
    accuracy = f"{statistics.median(found):.4f} ({min(found):.4f} to {max(found):.4f})"
    seconds = statistics.median(result.seconds for result in results)
    print(f"{way:<20}{accuracy:>26}{seconds:>10.2f}{results[0].steps:>8}{results[0].bytes_of_step:>12.0f}", flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="passes over the digits (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each strategy (%(default)s)")
    parser.add_argument("--batch", type=int, default=128, help="samples of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.08, help="learning rate, after 3 epochs (%(default)s)")
    parser.add_argument("--momentum", type=float, default=0.9, help="momentum of the optimizer (%(default)s)")
    parser.add_argument("--ways", default=";".join(WAYS), help="strategies between semicolons (default: all)")
    args = parser.parse_args()
    args.ways = args.ways.split(";")
    if unknown := set(args.ways) - set(WAYS):
        parser.error(f"--ways: unknown {', '.join(sorted(unknown))}")
    if min(args.epochs, args.seeds, args.batch) < 1 or args.lr <= 0 or not 0 <= args.momentum < 1:
        parser.error("--epochs, --seeds, --batch, --lr: positive numbers; --momentum: below 1")
    return args


def main() -> int:
    """Train with each strategy and print the table on rank 0."""
    args, comm = options(), collectives.Communicator(WORLD)
    limit_threads(comm)
    data = train.digits()
    if comm.rank == 0:
        print(f"{comm.size} ranks, {args.epochs} epochs, batch {args.batch}, lr {args.lr}, {args.seeds} seeds")
        print(f"{'':<20}{'accuracy':>26}{'seconds':>10}{'steps':>8}{'bytes':>12}", flush=True)
    for way in args.ways:
        results = [run(way, seed, data, comm, args) for seed in range(args.seeds)]
        if comm.rank == 0:
            show(way, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
