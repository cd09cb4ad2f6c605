"""Measures the bubble of pipelines, and their step time beside that of torch.distributed.pipelining.

    mpiexec -n 4 python benchmarks/pipelines.py
    mpiexec -n 4 python benchmarks/pipelines.py --check --json FILE     exit 1 if a target is missed

Every stage sleeps for a fixed time in its forward pass, and twice as long in its backward pass, so that the ranks may
be more than the cores. The modules are the same for both contestants; torch's messages go through Gloo. In every round
the contestants take turns, in an order drawn for that round. Shown are medians over rounds. Most of a step is sleep,
which is the same for both: (vM+K-1)/v times that of a stage for a micro-batch. So also shown is how far each contestant
is above this, and in how many rounds this library's step was the shorter one. Targets: the bubble is within 15 % of
(K-1)/(M+K-1), interleaved (K-1)/(vM+K-1); and the median of the rounds' ratios is at most 1, torch's step being 1.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import collectives
from collectives import train
from collectives.files import write_json
from collectives.launch.usage import file_to_write
from collectives.train.pipeline.interleaved_1f1b import Interleaved1F1B

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/support"))
from free_port import free_port  # type: ignore[import-not-found]  # noqa: E402

WIDTH = 16
SCHEDULES = {"gpipe": 1, "1f1b": 1, "interleaved_1f1b": 2}  # with the chunks of a stage
TOLERANCE = 0.15
Step = Callable[[], None]


class Sleeping(torch.autograd.Function):
    """The identity, which takes a fixed time, and twice as long backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        """Sleep once."""
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sleep twice."""
        time.sleep(2 * ctx.seconds)
        return grads[0], None


class Timed(torch.nn.Module):
    """A small layer that takes a fixed time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.linear, self.seconds = torch.nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer, then the sleep."""
        out: torch.Tensor = Sleeping.apply(self.linear(x), self.seconds)
        return out


def blocks(count: int, seconds: float) -> list[Timed]:
    """The model: the same on all ranks."""
    torch.manual_seed(0)
    return [Timed(seconds) for _ in range(count)]


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A mean over the samples."""
    return torch.nn.functional.mse_loss(output, target)


class Contest:
    """One schedule, by this library and by torch, on the ranks of `comm`."""

    def __init__(self, comm: Any, name: str, args: argparse.Namespace) -> None:
        self.name, self.chunks, self.comm = name, SCHEDULES[name], comm
        self.micro_batches, slots = args.micro_batches, self.chunks * args.micro_batches + comm.size - 1
        self.ideal = slots * 3 * args.ms / 1000 / self.chunks
        seconds = args.ms / 1000 / self.chunks
        count = self.chunks * comm.size
        schedule = Interleaved1F1B(self.chunks) if self.chunks > 1 else name
        net = torch.nn.Sequential(*blocks(count, seconds))
        self.pipe = train.Pipeline(net, comm, schedule=schedule, micro_batches=args.micro_batches)
        x = torch.randn(4 * args.micro_batches, WIDTH, generator=torch.Generator().manual_seed(1))
        self.steps: dict[str, Step] = {
            "train": lambda: self._ours(x),
            "torch": self._theirs(blocks(count, seconds), x),
        }

    def _ours(self, x: torch.Tensor) -> None:
        self.pipe.step(x, x, loss)

    def _theirs(self, modules: list[Timed], x: torch.Tensor) -> Step:
        rank, size, count = self.comm.rank, self.comm.size, len(modules)
        stages = [
            PipelineStage(modules[virtual], virtual, count, torch.device("cpu")) for virtual in range(rank, count, size)
        ]
        if self.chunks > 1:
            schedule: Any = ScheduleInterleaved1F1B(stages, self.micro_batches, loss_fn=loss)
        else:
            kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[self.name]
            schedule = kind(stages[0], self.micro_batches, loss_fn=loss)
        given = (x,) if rank == 0 else ()
        target = {"target": x} if rank == size - 1 else {}
        return lambda: schedule.step(*given, **target)

    def round(self, order: list[str]) -> tuple[dict[str, float], float]:
        """Seconds of a step of each contestant on the slowest rank, and the measured bubble of ours."""
        found = {}
        for who in order:
            self.comm.Barrier()
            begin = time.perf_counter()
            self.steps[who]()
            found[who] = self.comm.allreduce(time.perf_counter() - begin, MPI.MAX)
        return found, self.pipe.report().bubble

    def measure(self, rounds: int, draw: random.Random) -> dict[str, Any]:
        """The medians over rounds, after one to warm up."""
        self.round(list(self.steps))
        made = [self.round(draw.sample(list(self.steps), len(self.steps))) for _ in range(rounds)]
        times = {who: statistics.median(seconds[who] for seconds, _ in made) for who in self.steps}
        ratios = [seconds["train"] / seconds["torch"] for seconds, _ in made]
        stages = self.comm.size
        formula = (stages - 1) / (self.chunks * self.micro_batches + stages - 1)
        bubble = statistics.median(bubble for _, bubble in made)
        self.pipe.free()
        return {
            "schedule": self.name, "bubble": bubble, "formula": formula, "ideal": self.ideal, "seconds": times,
            "above": {who: seconds - self.ideal for who, seconds in times.items()},
            "ratio": statistics.median(ratios), "ratios": sorted(ratios),
        }  # fmt: skip


def line(found: dict[str, Any]) -> str:
    """The figures of one schedule."""
    times = "  ".join(
        f"{who} {seconds * 1000:8.2f} ms ({found['above'][who] * 1000:+.2f})"
        for who, seconds in found["seconds"].items()
    )
    bubble = f"bubble {found['bubble']:6.1%} (formula {found['formula']:6.1%})"
    won, ratios = sum(ratio < 1 for ratio in found["ratios"]), found["ratios"]
    ratio = f"ratio {found['ratio']:.4f} ({ratios[0]:.4f} to {ratios[-1]:.4f}), shorter in {won} of {len(ratios)}"
    return f"{found['schedule']:17} {bubble}  ideal {found['ideal'] * 1000:.2f} ms  {times}  {ratio}"


def start_gloo(comm: Any) -> None:
    """Let torch's processes of this job know each other."""
    port = comm.bcast(free_port(), root=0)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)


def missed(found: dict[str, Any]) -> list[str]:
    """What is wrong with the figures of one schedule."""
    wrong = []
    if abs(found["bubble"] / found["formula"] - 1) > TOLERANCE:
        wrong.append(f"{found['schedule']}: bubble {found['bubble']:.1%}, by the formula {found['formula']:.1%}")
    if found["ratio"] > 1:
        wrong.append(f"{found['schedule']}: the step takes {found['ratio']:.4f} times as long as torch's")
    return wrong


def main() -> int:
    """Measure and print; 1 when a target is missed and --check is given."""
    parser = argparse.ArgumentParser(description="the bubble of pipelines, and their step time beside torch's")
    parser.add_argument("--micro-batches", type=int, default=8, metavar="M")
    parser.add_argument(
        "--ms", type=float, default=30.0, help="milliseconds of a forward pass of a stage (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    parser.add_argument("--json", type=file_to_write, metavar="FILE", help="write the figures")
    args = parser.parse_args()
    torch.set_num_threads(1)
    comm = collectives.Communicator(MPI.COMM_WORLD)
    start_gloo(comm)
    results = [Contest(comm, name, args).measure(args.rounds, random.Random(0)) for name in SCHEDULES]
    wrong = [text for found in results for text in missed(found)]
    if comm.rank == 0:
        for found in results:
            print(line(found))
        for text in wrong:
            print(f"missed: {text}")
        if args.json:
            described = {"ranks": comm.size, "torch": torch.__version__, **vars(args)}
            write_json(args.json, {"run": described, "results": results})
    dist.destroy_process_group()
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
