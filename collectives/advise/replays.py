"""How long the passes of a step last on a pipeline: by a replay of its schedule, which long ones continue regularly."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..train.pipeline.instructions import LAST, Instruction
from ..train.pipeline.lowering import lowered
from ..train.pipeline.one_f_one_b import OneFOneB
from ..train.pipeline.registry import find
from ..train.pipeline.replay import Durations, replay

__all__ = ["Passes", "Run", "least", "run"]

ROUNDS = 2  # micro-batches for each stage after which a pipeline goes on regularly


class Passes(NamedTuple):
    """Seconds of the passes of a micro-batch on a virtual stage."""

    forward: float
    backward_input: float
    backward_weight: float

    @property
    def backward(self) -> float:
        """The whole backward pass."""
        return self.backward_input + self.backward_weight

    @property
    def both(self) -> float:
        """Forward and backward pass."""
        return self.forward + self.backward


class Run(NamedTuple):
    """Seconds of all passes of a step, and when each stage has ended its last one."""

    length: float
    ends: tuple[float, ...]


def run(schedule: str, stages: int, count: int, passes: tuple[Passes, ...], transfer: float) -> Run:
    """Replay ``count`` micro-batches on ``stages`` ranks; ``passes`` are those of all virtual stages.

    Without a flush it is a batch among many, whose pipeline never drains.
    """
    regular = ROUNDS * stages
    if find(schedule).flushless:
        first, second = (_replayed(OneFOneB.name, stages, n, passes, transfer) for n in (regular, regular + stages))
        length = count * (second.length - first.length) / stages
        return Run(length, (length,) * stages)
    if count <= regular + stages:
        return _replayed(schedule, stages, count, passes, transfer)
    first, second = (_replayed(schedule, stages, n, passes, transfer) for n in (regular, regular + stages))
    rounds = (count - regular) / stages
    ends = zip(first.ends, second.ends, strict=True)
    return Run(
        first.length + rounds * (second.length - first.length), tuple(a + rounds * (b - a) for a, b in ends)
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _replayed(schedule: str, stages: int, count: int, passes: tuple[Passes, ...], transfer: float) -> Run:
    durations = Durations(
        [one.forward for one in passes], [one.backward for one in passes], [one.backward_input for one in passes],
        [one.backward_weight for one in passes], transfer,
    )  # fmt: skip
    timeline = replay(_programs(schedule, stages, count, len(passes) // stages), durations)
    ends = [max(span.end for span in spans if span.instruction.kind in LAST) for spans in timeline.stages]
    return Run(timeline.length, tuple(ends))


@functools.lru_cache(maxsize=8)
def _programs(schedule: str, stages: int, count: int, chunks: int) -> list[list[Instruction]]:
    kind = find(schedule)
    return lowered(kind(chunks) if kind.interleaved else kind(), stages, count)


def least(schedule: str, stages: int, count: int, passes: tuple[Passes, ...], transfer: float) -> float:
    """Seconds that `run` takes at least, without a replay.

    A stage begins after the first forward pass of those before it, works on all micro-batches, and ends before the last
    backward passes of those before it. With split passes some of its own are left for then, as many as the stage's
    number.
    """
    kind = find(schedule)
    most, ahead, behind = 0.0, 0.0, 0.0
    for stage in range(stages):
        busy = count * sum(one.both for one in passes[stage::stages])
        left = min(stage, count) * passes[stage].backward_weight if kind.split else 0.0
        most = max(most, busy if kind.flushless else ahead + busy + max(0.0, behind - left))
        ahead += passes[stage].forward + transfer
        behind += (passes[stage].backward_input if kind.split else passes[stage].backward) + transfer
    return most
