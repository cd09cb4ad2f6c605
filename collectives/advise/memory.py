"""How much memory a rank needs, term by term."""

from __future__ import annotations

import functools
from typing import NamedTuple

from ..train.pipeline.memory import held
from ..train.pipeline.registry import find
from ..train.pipeline.replay import BUFFERS
from .model import Model
from .plan import Plan
from .stages import Part, differing, parts

__all__ = ["Memory", "memories", "memory"]


class Memory(NamedTuple):
    """Bytes of the rank that needs the most. ``buffers`` are messages, and what ZeRO gathers or scatters."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """All of them."""
        return sum(self)


def memory(model: Model, plan: Plan) -> Memory:
    """The terms of the stage that needs the most."""
    return max(memories(model, plan), key=sum)


def memories(model: Model, plan: Plan) -> list[Memory]:
    """The terms of the stages. A stage has all versions of its weights that its schedule needs.

    Of stages that are alike only the first one is there. It needs the most, as it keeps activations for the longest
    time.
    """
    stages, tensor = plan.mesh.pipeline, plan.mesh.tensor
    found = parts(model, stages * plan.chunks, tensor, plan.recompute, plan.sequence)
    first_ones = differing(model, stages, plan.chunks, tensor, plan.recompute, plan.sequence)
    return [_of(model, plan, stage, found[stage::stages], found) for stage in first_ones]


def _of(model: Model, plan: Plan, stage: int, mine: tuple[Part, ...], all_parts: tuple[Part, ...]) -> Memory:
    parameters = sum(part.parameters for part in mine)
    precision, zero, ranks = model.precision, plan.zero, plan.mesh.data
    versions = plan.pipeline().versions(stage, plan.mesh.pipeline)
    gradients = precision.gradient * parameters
    buffers = _messages(plan, stage, all_parts)
    if zero == 1:
        buffers += gradients / ranks  # what a reduce-scatter brings
    elif zero:  # gradients of two blocks on their way; and their weights
        bytes_of_two = precision.gradient + (precision.weight if zero == 3 else 0)
        buffers += 2 * bytes_of_two * max(part.largest for part in mine)
    return Memory(
        precision.weight * parameters * versions / (ranks if zero == 3 else 1),
        gradients / (ranks if zero >= 2 else 1),
        precision.optimizer * parameters / (ranks if zero else 1),
        _activations(plan, stage, mine) * plan.micro_batch,
        buffers,
    )


def _messages(plan: Plan, stage: int, all_parts: tuple[Part, ...]) -> float:
    """Bytes of the messages of a stage: an activation and a gradient on each border, twice (`BUFFERS`)."""
    stages = plan.mesh.pipeline
    if stages == 1:
        return 0.0
    after = [all_parts[i + 1].border for i in range(stage, len(all_parts) - 1, stages)]
    before = [all_parts[i].border for i in range(stage, len(all_parts), stages)]
    return BUFFERS * plan.micro_batch * (max(after, default=0.0) + max(before))


def _activations(plan: Plan, stage: int, mine: tuple[Part, ...]) -> float:
    """The most bytes that a stage keeps at once, for micro-batches of one sample.

    A chunk that keeps more than the others, with logits for example, counts as often as it is kept.
    """
    stages, count = plan.mesh.pipeline, plan.micro_batches
    least = min(part.kept for part in mine)
    nbytes = plan.pipeline().activations(stage, stages, count) * least + max(part.restored for part in mine)
    for chunk, part in enumerate(mine):
        if part.kept > least:
            nbytes += (part.kept - least) * _of_chunk(plan.schedule, stage, stages, count, chunk, len(mine))
    return nbytes


@functools.cache
def _of_chunk(schedule: str, stage: int, stages: int, count: int, chunk: int, chunks: int) -> float:
    """The most activations of one of several chunks at once, counted along the program of a stage.

    After three rounds of micro-batches a program has begun to repeat itself, so more need not be counted.
    """
    program = find(schedule)(chunks).instructions(stage, stages, min(count, 3 * stages))
    return held(list(program), [float(i == chunk) for i in range(chunks)]).activation_bytes
