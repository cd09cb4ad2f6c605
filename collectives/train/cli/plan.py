"""The mesh and the pipeline that a command line asks for, and what they cannot be."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..mesh import AXES, named
from ..models.nn import Sequential
from ..pipeline.instructions import PipelineSchedule, check_step
from ..pipeline.layout import Layout
from ..pipeline.pipedream_2bw import PipeDream2BW
from ..pipeline.placement import Placement
from ..pipeline.registry import SCHEDULES, find
from ..strategies import Strategy
from .values import number


def axes(text: str) -> dict[str, int]:
    """An argparse type: ``data=2,pipeline=2``."""
    found: dict[str, int] = {}
    for part in text.split(","):
        axis, sign, length = part.partition("=")
        if axis not in AXES or not sign:
            raise argparse.ArgumentTypeError(f"{part!r} is not AXIS=LENGTH with an axis of {', '.join(AXES)}")
        if axis in found:
            raise argparse.ArgumentTypeError(f"axis {axis} is given twice")
        found[axis] = number(int, 1)(length)
    return found


def add_mesh(group: Any) -> None:
    """Add the options of a `Plan`."""
    group.add_argument(
        "--mesh",
        type=axes,
        metavar="AXES",
        help="the ranks as a grid, data=2,pipeline=2 for example. data: ranks with other samples (default: all ranks); "
        "pipeline: stages of the network; tensor: parts of its dense layers; tasks: networks trained side by side, "
        "with the seeds --seed, --seed + 1, ...",
    )
    group.add_argument(
        "--pipeline",
        choices=list(SCHEDULES),
        help="the schedule of the stages (default: 1f1b); 'show --pipeline NAME -p 4 -m 8' draws it",
    )
    group.add_argument(
        "--micro-batches",
        type=number(int, 1),
        metavar="M",
        help="micro-batches of a rank's part of a batch (default: twice the stages, or what the schedule needs)",
    )
    group.add_argument(
        "--chunks", type=number(int, 1), metavar="V", help="chunks of a stage, for interleaved_1f1b (default: 2)"
    )


class Plan(NamedTuple):
    """A mesh by the lengths of all its axes, and the schedule of its pipelines, None without any."""

    shape: dict[str, int]
    schedule: PipelineSchedule | None
    micro_batches: int

    @classmethod
    def of(cls, args: argparse.Namespace, ranks: int) -> Plan:
        """The plan of the options. ValueError if they do not fit together, or so many ranks."""
        given: Mapping[str, int] = {"data": ranks} if args.mesh is None else args.mesh
        if (product := math.prod(given.values())) != ranks:
            raise ValueError(f"--mesh {_text(given)} makes {_many(product, 'rank')}, and there are {ranks}")
        shape = {axis: given.get(axis, 1) for axis in AXES}
        if "pipeline" in given:
            return cls(shape, *_scheduled(args, shape["pipeline"]))
        for option in ("pipeline", "micro_batches", "chunks"):
            if getattr(args, option) is not None:
                raise ValueError(f"--{option.replace('_', '-')} needs a pipeline: --mesh pipeline=2, for example")
        return cls(shape, None, 1)

    @property
    def splits(self) -> bool:
        """Whether a rank has a part of the network only, or its stages."""
        return self.schedule is not None or self.shape["tensor"] > 1

    def check(self, strategy: Strategy, name: str) -> None:
        """ValueError if the strategy cannot serve the parts of a network."""
        if self.splits:
            strategy.check_parts(name)

    def check_batches(self, samples: int, batch: int) -> None:
        """ValueError if a stream of `samples` has steps with too few samples for its micro-batches."""
        if self.schedule is None or not self.schedule.flushless:
            return
        data = self.shape["data"]
        each = samples // data // steps(samples, batch)
        if each < self.micro_batches:
            raise ValueError(
                f"{self.schedule.name} needs a sample for each of {_many(self.micro_batches, 'micro-batch')}, and "
                f"--batch {batch} gives {each} to each of {_many(data, 'data rank')}"
            )

    def cut(self, net: Sequential, model: str) -> list[int]:
        """The first block of each stage but the first, balanced by parameters. ValueError for too many stages."""
        if self.schedule is None:
            return []
        ranks = self.shape["pipeline"]
        try:
            layout = Layout(net, Placement(0, ranks), self.schedule.chunks, "parameters", None, "relay")
            layout.check()
        except ValueError as error:
            chunks = f" with {self.schedule.chunks} chunks each" if self.schedule.chunks > 1 else ""
            why = str(error).partition(";")[0]
            raise ValueError(f"the {model} makes no pipeline of {_many(ranks, 'stage')}{chunks}: {why}") from None
        return list(layout.bounds[1:-1])

    def __str__(self) -> str:
        """For the first line of a training."""
        if self.schedule is None:
            return named(self.shape)
        return f"{named(self.shape)}, {self.schedule.name} with {_many(self.micro_batches, 'micro-batch')}"


def steps(samples: int, batch: int) -> int:
    """The steps of an epoch that is one stream: none has fewer samples than `batch`, if there are as many."""
    return max(1, samples // batch)


def _scheduled(args: argparse.Namespace, stages: int) -> tuple[PipelineSchedule, int]:
    """The schedule and the micro-batches. ValueError if they do not fit."""
    kind, micro = find(args.pipeline or "1f1b"), args.micro_batches
    try:
        schedule = kind() if args.chunks is None else kind(args.chunks)
        if isinstance(schedule, PipeDream2BW):
            schedule.accumulate = micro or stages
            micro = schedule.accumulate
        elif micro is None:
            micro = 1 if schedule.flushless else 2 * stages
        check_step(schedule, stages, micro)
    except ValueError as error:
        raise ValueError(f"--mesh pipeline={stages}: {error}") from None
    return schedule, micro


def _text(given: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={length}" for axis, length in given.items())


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 'es' if what.endswith('ch') else 's'}"
