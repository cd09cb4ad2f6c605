"""The ranks of ``advise.py``: measure what the advice is told, then count and time every configuration.

The folder in the first argument has a file ``asked``; rank 0 writes ``found`` there: the figures of
:class:`collectives.advise.machine.Machine`, and for each configuration its name, the seconds of a step in every round
and the bytes of the rank that holds the most.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _advise_setup import BATCH, BLOCKS, HIDDEN, WIDTH, of
from _simulated_worker import parameters
from mpi4py import MPI

import collectives
from collectives import train
from collectives.advise.plan import Plan
from collectives.train.models.nn import Array, Layer
from collectives.train.pipeline.registry import find
from collectives.train.tensor import ColumnParallelLinear, RowParallelLinear

WORLD = MPI.COMM_WORLD
TIMES, MICRO_BATCHES = 9, 4
WARM = 1  # steps before the first one that counts


class Pause(Layer):
    """The identity, which sleeps for a time for each row: once forward, once in each part of the backward pass."""

    def __init__(self, row: float) -> None:
        self.row = row

    def forward(self, x: Array) -> tuple[Array, int]:
        """Sleep."""
        time.sleep(self.row * len(x))
        return x, len(x)

    def backward_input(self, saved: int, grad: Array) -> Array:
        """Sleep."""
        time.sleep(self.row * saved)
        return grad

    def backward_weight(self, saved: int, grad: Array) -> None:
        """Sleep."""
        time.sleep(self.row * saved)


def block(row: float, comm: Any, rng: np.random.Generator) -> list[Layer]:
    """The layers of a block, cut over the ranks of `comm`."""
    first, second = train.Linear(WIDTH, HIDDEN, rng=rng), train.Linear(HIDDEN, WIDTH, rng=rng)
    if comm.size == 1:
        return [first, train.ReLU(), Pause(row), second]
    cut = ColumnParallelLinear(first, comm), RowParallelLinear(second, comm)
    return [cut[0], train.ReLU(), Pause(row / comm.size), cut[1]]


class Training:
    """A configuration that is ready to train."""

    def __init__(self, comm: Any, plan: Plan, row: float) -> None:
        mesh = plan.mesh
        self.comm = comm
        self.mesh = train.Mesh(comm, data=mesh.data, pipeline=mesh.pipeline, tensor=mesh.tensor)
        rng = np.random.default_rng(0)
        layers = [layer for _ in range(BLOCKS) for layer in block(row, self.mesh.tensor, rng)]
        kind = find(plan.schedule)
        stages = mesh.pipeline * plan.chunks
        self.pipe = train.Pipeline(
            train.Sequential(*layers), self.mesh.pipeline, micro_batches=plan.micro_batches,
            schedule=kind(plan.chunks) if kind.interleaved else kind(), recompute=plan.recompute == "stage",
            cut=[len(layers) * i // stages for i in range(1, stages)],
        )  # fmt: skip
        opt = train.SGD(self.pipe.parameters(), 1e-4, momentum=0.9)
        self.strategy = train.AllReduce(shard=plan.zero)
        _, self.opt = train.distribute(self.pipe, opt, self.strategy, mesh=self.mesh)
        mine = BATCH // mesh.data
        self.x = rng.standard_normal((mine, WIDTH)).astype(np.float32)
        self.y = rng.integers(0, WIDTH, mine)

    def step(self) -> float:
        """Seconds of a step on the slowest rank."""
        self.comm.Barrier()
        begin = time.perf_counter()
        self.opt.zero_grad()
        self.pipe.step(self.x, self.y, train.CrossEntropyLoss())
        self.opt.step()
        return float(self.comm.allreduce(time.perf_counter() - begin, MPI.MAX))

    def counted(self) -> float:
        """Bytes of weights, gradients, states and activations on the rank that holds the most."""
        activations = self.pipe.report().activation_bytes[self.mesh.pipeline.rank]
        buckets = self.strategy.buckets.list
        states = sum(array.nbytes for array in self.opt.kept())
        held = sum(bucket.data.nbytes + bucket.grads.nbytes for bucket in buckets) + states + activations
        return float(self.comm.allreduce(held, MPI.MAX))


def slowest(call: Any) -> float:
    """Seconds of a call that all ranks make at the same time: the median, on the slowest rank."""
    call()
    times = []
    WORLD.Barrier()
    for _ in range(TIMES):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return float(WORLD.allreduce(statistics.median(times), MPI.MAX))


def machine(each: int, row: float) -> dict[str, float]:
    """The figures of the machine: of links, of one block on each rank, and of an optimizer."""
    links = parameters(each)
    rows = (4, 16)
    rng = np.random.default_rng(1)
    whole = train.Sequential(*(layer for _ in range(BLOCKS) for layer in block(row, MPI.COMM_SELF, rng)))

    alone = collectives.Communicator(MPI.COMM_SELF)
    pipe = train.Pipeline(train.Sequential(*block(row, alone, rng)), alone, micro_batches=MICRO_BATCHES)

    def passes(rows: int) -> float:
        """Seconds of a forward pass and both parts of a backward pass of a micro-batch."""
        x = np.ones((MICRO_BATCHES * rows, WIDTH), np.float32)
        y = np.zeros(len(x), int)
        return slowest(lambda: pipe.step(x, y, train.CrossEntropyLoss())) / MICRO_BATCHES

    few, many = map(passes, rows)
    row = (many - few) / (rows[1] - rows[0])
    opt = train.SGD(whole.parameters(), 1e-4, momentum=0.9)
    nbytes = 5 * sum(p.data.nbytes for p in whole.parameters())  # weights and momentum twice, gradients once
    return {
        "flops": 12 * WIDTH * HIDDEN / row,
        "overhead": max(0.0, few - rows[0] * row) / 3,
        "update_rate": nbytes / slowest(opt.step),
        "alpha": links["alpha"] + 2 * links["overhead"],
        "beta": links["beta"],
        "local_alpha": links["local_alpha"] + 2 * links["overhead"],
        "local_beta": links["local_beta"],
        "fold": links["fold"],
    }


def main() -> None:
    """Measure the machine, then all configurations."""
    folder = Path(sys.argv[1])
    asked = json.loads((folder / "asked").read_text())
    comm = collectives.Communicator(WORLD)
    told = machine(asked["each"], asked["row"])
    made = {name: Training(comm, of(name), asked["row"]) for name in asked["configurations"]}
    times: dict[str, list[float]] = {name: [] for name in made}
    for number in range(asked["rounds"] + WARM):
        for name in random.Random(number).sample(sorted(made), len(made)):  # the same order on all ranks
            seconds = made[name].step()
            if number >= WARM:
                times[name].append(seconds)
    found = [[name, times[name], training.counted()] for name, training in made.items()]
    if WORLD.rank == 0:
        (folder / "found").write_text(json.dumps({"machine": told, "configurations": found}))


if __name__ == "__main__":
    main()
