"""Compressed gradients: accuracy, bytes and seconds of each method on scikit-learn's digits, with a perceptron.

    mpiexec -n 4 python benchmarks/train_compression.py
    mpiexec -n 4 --host A:2,B:2 python benchmarks/train_compression.py --epochs 50 --seeds 5

Every method trains the same network from the same parameters on the same batches, once for each seed, with SGD and
momentum. `accuracy` is the mean over the seeds on the test digits, with the lowest and
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


class Result(NamedTuple):
    """What one training gave."""

    accuracy: float
    bytes_of_step: float
    of_dense: float
    seconds: float


def run(way: str, seed: int, data: train.Dataset, comm: Any, args: argparse.Namespace) -> Result:
    """Train once. Collective."""
    net = train.mlp(data.x_train.shape[1:], data.classes, rng=np.random.default_rng(seed))
    opt = train.SGD(net.parameters(), args.lr, momentum=0.9)
    compression = WAYS[way]()
    net, opt = train.distribute(net, opt, train.AllReduce(compression=compression), comm=comm)
    loader = train.Loader((data.x_train, data.y_train), args.batch, seed=seed, comm=comm)
    loss_fn = train.CrossEntropyLoss()
    comm.Barrier()
    begin = time.perf_counter()
    for _ in range(args.epochs):
        for x, y in loader:
            opt.zero_grad()
            loss_fn(net(x), y).backward()
            opt.step()
    seconds = comm.allreduce(time.perf_counter() - begin, op=MPI.MAX)
    if not train.same_bits(net, comm):
        raise AssertionError(f"{way}: the ranks' parameters differ")
    accuracy = train.evaluate(net, data.x_test, data.y_test, comm=comm)["accuracy"]
    dense = sum(p.data.nbytes for p in net.parameters())
    sent = dense if compression is None else compression.sent / (args.epochs * len(loader))
    return Result(accuracy, sent, sent / dense, seconds)


def show(way: str, results: list[Result]) -> None:
    """Print a row."""
    found = [100 * result.accuracy for result in results]
    accuracy = f"{statistics.mean(found):.2f} % ({min(found):.2f} to {max(found):.2f})"
    first = results[0]
    seconds = statistics.median(result.seconds for result in results)
    print(f"{way:<16}{accuracy:>26}{first.bytes_of_step:>10.0f}{first.of_dense:>10.3f}{seconds:>10.2f}", flush=True)


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
    for way in args.ways:
        results = [run(way, seed, data, comm, args) for seed in range(args.seeds)]
        if comm.rank == 0:
            show(way, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
