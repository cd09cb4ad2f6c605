"""Ways to train a model on a number of ranks: a mesh, and how its axes are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..train.pipeline.instructions import PipelineSchedule
from ..train.pipeline.pipedream_2bw import PipeDream2BW
from ..train.pipeline.registry import find
from .model import Model

__all__ = ["RECOMPUTE", "Choices", "Mesh", "Plan", "meshes", "plans"]

#: What forward passes keep less, from nothing: the attention (Korthikanti et al. 2022, sec. 5, "selective"), all but
#: the blocks' inputs (Chen et al. 2016), all but what a stage receives (``Pipeline(recompute=True)``).
RECOMPUTE = ("none", "attention", "block", "stage")

MOST_CHUNKS = 8  # of a stage: more of them shorten the bubble little, and each needs messages


@dataclass(frozen=True, order=True)
class Mesh:
    """The lengths of the axes, those of `train.Mesh`."""

    data: int
    pipeline: int
    tensor: int

    def __str__(self) -> str:
        return f"data={self.data} pipeline={self.pipeline} tensor={self.tensor}"

    @property
    def form(self) -> str:
        """``2x4x1``: data, pipeline, tensor."""
        return f"{self.data}x{self.pipeline}x{self.tensor}"

    @property
    def kind(self) -> str:
        """``data``, ``pipeline``, ``tensor``, or ``hybrid`` if more than one axis is longer than 1."""
        long = [axis for axis in ("data", "pipeline", "tensor") if getattr(self, axis) > 1]
        return "hybrid" if len(long) > 1 else long[0] if long else "one rank"


@dataclass(frozen=True)
class Plan:
    """A mesh, and what runs on it.

    ``micro_batch`` is the number of samples of a micro-batch, ``micro_batches`` their number in a step on each data
    rank. ``chunks`` are those of an interleaved pipeline. ``zero`` is the stage of ZeRO (Rajbhandari et al. 2020, sec.
    5): 1 shards the optimizer's state over the data ranks, 2 gradients too, 3 weights too. ``sequence``: activations
    between the cut layers are cut along the positions (Korthikanti et al. 2022, sec. 4.2.2).
    """

    mesh: Mesh
    micro_batch: int
    micro_batches: int
    schedule: str = "1f1b"
    chunks: int = 1
    recompute: str = "none"
    zero: int = 0
    sequence: bool = False

    def pipeline(self) -> PipelineSchedule:
        """The schedule of the pipeline."""
        if self.schedule == "pipedream_2bw":
            return PipeDream2BW(accumulate=self.micro_batches)
        kind = find(self.schedule)
        return kind(self.chunks) if kind.interleaved else kind()

    @property
    def settings(self) -> str:
        """All but the mesh, in words."""
        words = [f"{self.micro_batches} x {self.micro_batch}"]
        if self.mesh.pipeline > 1:
            words.append(f"{self.schedule}:{self.chunks}" if self.chunks > 1 else self.schedule)
        words += [f"recompute {self.recompute}"] * (self.recompute != "none") + [f"zero {self.zero}"] * bool(self.zero)
        return ", ".join(words)


@dataclass(frozen=True)
class Choices:
    """What plans may use; of ``data``, ``pipeline``, ``tensor`` and ``micro_batch`` None leaves the number open."""

    data: int | None = None
    pipeline: int | None = None
    tensor: int | None = None
    micro_batch: int | None = None
    schedules: Sequence[str] = ("1f1b", "interleaved_1f1b", "zero_bubble")
    recompute: Sequence[str] = RECOMPUTE[:3]
    zero: Sequence[int] = (0, 1)
    sequence: bool = True

    def __post_init__(self) -> None:
        for schedule in self.schedules:
            find(schedule)
        for word in self.recompute:
            if word not in RECOMPUTE:
                raise ValueError(f"unknown recomputation {word!r}; there are {', '.join(RECOMPUTE)}")
        for stage in self.zero:
            if stage not in (0, 1, 2, 3):
                raise ValueError(f"ZeRO has the stages 1, 2 and 3, and 0 for none, not {stage}")
        for name in ("data", "pipeline", "tensor", "micro_batch"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name}: expected at least 1, not {value}")


def divisors(number: int) -> list[int]:
    """The divisors of a number, smallest first."""
    return [d for d in range(1, number + 1) if number % d == 0]


def meshes(model: Model, batch: int, ranks: int, choices: Choices) -> list[Mesh]:
    """The meshes of all ranks: the batch is cut evenly, no stage is empty, and tensor ranks divide the heads.

    ValueError, which says what is in the way, if there is none.
    """
    wanted = {axis: getattr(choices, axis) for axis in ("data", "pipeline", "tensor")}
    found = [
        Mesh(ranks // stages // tensor, stages, tensor)
        for stages in divisors(ranks)
        for tensor in divisors(ranks // stages)
        if stages <= len(model.blocks) and (not model.heads or model.heads % tensor == 0)
    ]
    found = [mesh for mesh in found if all(want in (None, getattr(mesh, axis)) for axis, want in wanted.items())]
    divided = [mesh for mesh in found if batch % mesh.data == 0]
    if not found:
        fixed = ", ".join(f"{axis}={want}" for axis, want in wanted.items() if want is not None)
        heads = f"heads ({model.heads}) that tensor ranks divide" if model.heads else "a tensor axis"
        raise ValueError(
            f"no mesh of {ranks} ranks has {fixed or 'these axes'}, at most {len(model.blocks)} stages and {heads}"
        )
    if not divided:
        least = min(mesh.data for mesh in found)
        raise ValueError(f"a batch of {batch} is not cut evenly by any mesh; data is at least {least}")
    return divided


def plans(model: Model, batch: int, mesh: Mesh, choices: Choices) -> Iterator[Plan]:
    """All plans for a mesh, with settings that have an effect there; those that keep the most come first.

    All stages of ZeRO are 0 on a mesh with one data rank; 2 and 3 need a mesh without a pipeline.
    """
    mine = batch // mesh.data
    stages = choices.zero if mesh.data > 1 else (0,)  # one data rank has nothing to share
    zeros = [zero for zero in stages if zero < 2 or mesh.pipeline == 1]
    sequence = choices.sequence and mesh.tensor > 1
    for micro_batch in divisors(mine):
        if choices.micro_batch not in (None, micro_batch):
            continue
        count = mine // micro_batch
        for schedule, chunks in _schedules(model, mesh.pipeline, count, choices.schedules):
            for recompute in sorted(choices.recompute, key=RECOMPUTE.index):
                for zero in zeros:
                    yield Plan(mesh, micro_batch, count, schedule, chunks, recompute, zero, sequence)


def _schedules(model: Model, stages: int, count: int, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Schedules, each with its chunks. On one stage all are the same."""
    if stages == 1:
        yield "1f1b", 1
        return
    for name in names:
        kind = find(name)
        if kind.interleaved:
            most = (len(model.blocks) - 2) // stages
            yield from ((name, v) for v in divisors(most) if 1 < v <= MOST_CHUNKS and count % stages == 0)
        elif name == "pipedream_2bw":
            yield from [(name, 1)] * (count >= stages)
        elif name != "pipedream" or count == 1:
            yield name, 1
