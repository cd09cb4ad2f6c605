"""The ranks of a job of ``train_hosts.py``: time the steps of all contestants, in turns.

Argument 1 is JSON: ``layers`` and ``width`` of the network, ``rounds``, ``steps`` of a turn, ``rest``, seconds before
each turn, and ``ratio``, computation divided by communication. Rank 0 prints a line of JSON.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from _hosts_worker import seconds
from mpi4py import MPI
from torch import nn
from train_torch import by_ddp, by_train, check, loop, mlp, optimizer

import collectives

WORLD = MPI.COMM_WORLD
Call = Callable[[], object]


def alone(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Call:
    """A step without communication."""
    net = copy.deepcopy(model)
    return loop(net, optimizer(net), x, y)


def communication(opt: Any, comm: Any) -> Call:
    """The all-reduces of a step of `train`: of all its buckets at once."""

    def call() -> None:
        vectors = [bucket.grads for bucket in opt.strategy.buckets.list]
        for request in [comm.Iallreduce(MPI.IN_PLACE, vector, op=collectives.AVG) for vector in vectors]:
            request.Wait()

    return call


def samples(count: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's batch."""
    torch.manual_seed(2 + dist.get_rank())
    return torch.randn(count, width), torch.randint(width, (count,))


def batch_for(model: nn.Module, wanted: float, width: int) -> int:
    """The number of samples of a rank for which a step without communication takes about ``wanted`` seconds."""
    count = 64
    for _ in range(3):
        step = alone(model, *samples(count, width))
        step()
        count = max(8, round(count * wanted / min(seconds(WORLD, step, 0, 1) for _ in range(3))))
    return count


def main() -> None:
    """Measure all contestants, and check that they compute the same."""
    told = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    width = told["width"]
    model = mlp([width] * (told["layers"] + 1))
    comm = collectives.Communicator(WORLD)
    dist.init_process_group("collectives")
    gloo = dist.new_group(backend="gloo")
    _, _, opt = by_train(model, *samples(8, width), comm)
    exchange = communication(opt, comm)
    exchange()
    took = min(seconds(WORLD, exchange, told["rest"], told["steps"]) for _ in range(3))
    batch = batch_for(model, told["ratio"] * took, width)
    x, y = samples(batch, width)
    found: dict[str, Any] = {"train": by_train(model, x, y, comm)[:2]}
    found["ddp"] = by_ddp(model, x, y, dist.group.WORLD)
    found["gloo"] = by_ddp(model, x, y, gloo)
    found["gloo, 1 MiB"] = by_ddp(model, x, y, gloo, bucket_cap_mb=1)
    check(found)
    calls = {"compute": alone(model, x, y), "communicate": exchange} | {name: step for name, (_, step) in found.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(told["rounds"]):
        for name in random.Random(number).sample(sorted(calls), len(calls)):  # the same order on all ranks
            times[name].append(seconds(WORLD, calls[name], told["rest"], told["steps"]))
    nbytes = sum(bucket.grads.nbytes for bucket in opt.strategy.buckets.list)
    if comm.rank == 0:
        print(json.dumps({"nbytes": nbytes, "buckets": len(opt.strategy.buckets), "batch": batch, "times": times}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
