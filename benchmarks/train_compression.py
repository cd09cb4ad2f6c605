"""Compressed gradients: accuracy, bytes and seconds of each method on scikit-learn's digits, with a perceptron.

    mpiexec -n 4 python benchmarks/train_compression.py
    mpiexec -n 4 --host A:2,B:2 python benchmarks/train_compression.py --epochs 50 --seeds 5

Every method trains the same network from the same parameters on the same batches, once for each seed, with SGD and
momentum. All gradients are one bucket. `accuracy` is the mean over the seeds on the test digits, with the lowest and
the highest one. `bytes` is what a rank hands to collectives in a step; `of dense` compares it with plain all-reduces of
float32. `seconds` is the training of one seed, the median. On one node bytes cost nothing much: there the table shows
what compression computes. Between slow hosts it shows what compression saves.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

import collectives
from collectives import train
from collectives.train.blas_threads import limit_threads

WORLD = MPI.COMM_WORLD
WAYS: dict[str, Callable[[], train.Compression[Any] | None]] = {
    "dense": lambda: None,
    "Float16Wire()": train.Float16Wire,
    "BFloat16Wire()": train.BFloat16Wire,
    "Int8()": train.Int8,
    "TopK(0.1)": lambda: train.TopK(0.1),
    "TopK(0.01)": lambda: train.TopK(0.01),
    "PowerSGD(1)": lambda: train.PowerSGD(1),
    "PowerSGD(4)": lambda: train.PowerSGD(4),
}


class Gradients:
    """The gradients of a network in one bucket, in which the ranks average them by a compression or without."""

    index = 0

    def __init__(self, net: train.Sequential, compression: train.Compression[Any] | None, comm: Any) -> None:
        self.compression, self.comm = compression, comm
        self.grads = comm.zeros(sum(p.data.size for p in net.parameters()), np.float32)
        self.parameters: list[Any] = []
        self.sent = start = 0
        for p in net.parameters():
            place = SimpleNamespace(name=p.name, shape=p.data.shape, size=p.data.size, start=start)
            p.bind_grad(self.grads[start : start + place.size].reshape(place.shape))
            self.parameters.append(place)
            start += place.size

    def average(self, samples: int, total: int) -> None:
        """Make the gradients, those of `samples` samples of this rank, the mean over `total` samples of all ranks."""
        self.grads *= samples * self.comm.size / total
        if self.compression is None:
            self.sent += self.grads.nbytes
            self.comm.Allreduce(MPI.IN_PLACE, self.grads, op=collectives.AVG)
            return
        for request in self.compression.exchange(self, self.comm):
            request.Wait()
        self.sent = self.compression.sent


class Result(NamedTuple):
    """What one training gave."""

    accuracy: float
    bytes_of_step: float
    seconds: float


def run(way: str, seed: int, data: train.Dataset, comm: Any, args: argparse.Namespace) -> Result:
    """Train once. Collective."""
    net = train.mlp(data.x_train.shape[1:], data.classes, rng=np.random.default_rng(seed))
    opt = train.SGD(net.parameters(), args.lr, momentum=0.9)
    gradients = Gradients(net, WAYS[way](), comm)
    loss_fn, count = train.CrossEntropyLoss(), len(data.x_train)
    comm.Barrier()
    begin = time.perf_counter()
    for epoch in range(args.epochs):
        order = np.random.default_rng([seed, epoch]).permutation(count)
        for start in range(0, count, args.batch):
            rows = order[start : start + args.batch]
            mine = rows[comm.rank :: comm.size]
            opt.zero_grad()
            loss_fn(net(data.x_train[mine]), data.y_train[mine]).backward()
            gradients.average(len(mine), len(rows))
            opt.step()
    seconds = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
    if not train.same_bits(net, comm):
        raise AssertionError(f"{way}: the ranks' parameters differ")
    accuracy = train.evaluate(net, data.x_test, data.y_test, comm=comm)["accuracy"]
    return Result(accuracy, gradients.sent / opt.steps, seconds)


def show(way: str, results: list[Result], dense: float) -> None:
    """Print a row."""
    found = [100 * result.accuracy for result in results]
    accuracy = f"{statistics.mean(found):.2f} % ({min(found):.2f} to {max(found):.2f})"
    size = results[0].bytes_of_step
    seconds = statistics.median(result.seconds for result in results)
    print(f"{way:<16}{accuracy:>26}{size:>10.0f}{size / dense:>10.3f}{seconds:>10.2f}", flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30, help="passes over the digits (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each method (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of all ranks in a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate (%(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="methods between commas (default: all)")
    args = parser.parse_args()
    args.ways = args.ways.split(",")
    if unknown := set(args.ways) - set(WAYS):
        parser.error(f"--ways: unknown {', '.join(sorted(unknown))}")
    if min(args.epochs, args.seeds, args.batch) < 1 or args.lr <= 0:
        parser.error("--epochs, --seeds, --batch, --lr: positive numbers")
    return args


def main() -> int:
    """Train with each method and print the table on rank 0."""
    args, comm = options(), collectives.Communicator(WORLD)
    limit_threads(comm)
    warnings.simplefilter("ignore", UserWarning)  # TopK's: the table shows what a bucket that is sent whole costs
    data = train.digits()
    if comm.rank == 0:
        print(f"{comm.size} ranks, {args.epochs} epochs, batch {args.batch}, lr {args.lr}, {args.seeds} seeds")
        print(f"{'':<16}{'accuracy':>26}{'bytes':>10}{'of dense':>10}{'seconds':>10}", flush=True)
    dense = 4 * sum(p.data.size for p in train.mlp((64,), 10, rng=np.random.default_rng(0)).parameters())
    for way in args.ways:
        results = [run(way, seed, data, comm, args) for seed in range(args.seeds)]
        if comm.rank == 0:
            show(way, results, dense)
    return 0


if __name__ == "__main__":
    sys.exit(main())
