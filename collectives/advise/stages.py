"""A model cut into the stages of a pipeline: sums over the blocks of each stage, for a number of tensor ranks."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from ..train.pipeline.partition import balanced
from .model import Block, Model

__all__ = ["Part", "differing", "parts"]


@dataclass(frozen=True)
class Part:
    """What one rank has of a virtual stage. Operations and bytes are those of one sample.

    ``kept`` are bytes from the forward pass until the backward pass, ``restored`` those that are there besides while a
    backward pass repeats what was not kept. ``repeated`` are the operations of that. ``forward_reduced`` and
    ``backward_reduced`` are bytes of each all-reduce of tensor ranks, of which there are so many calls;
    ``repeated_calls`` are those of repeated forward passes. ``largest`` is the most parameters of a block.
    """

    parameters: float
    largest: float
    flops: float
    repeated: float
    kept: float
    restored: float
    border: float
    reduced: float
    forward_calls: int
    backward_calls: int
    repeated_calls: int


@functools.cache
def bounds(model: Model, stages: int) -> tuple[int, ...]:
    """The first blocks of the stages, and the number of blocks: as even in operations as can be.

    That is ``Pipeline(..., cut="flops")``.
    """
    flops, parameters = [block.flops for block in model.blocks], [block.parameters for block in model.blocks]
    return tuple(balanced(flops, [1] * stages, parameters))


@functools.cache
def parts(model: Model, stages: int, tensor: int, recompute: str, sequence: bool) -> tuple[Part, ...]:
    """The virtual stages of a model, in order; equal ones are the same object."""
    known: dict[Part, Part] = {}
    found = []
    for first, last in itertools.pairwise(bounds(model, stages)):
        shared = model.tied if last - first == len(model.blocks) else 0.0
        part = _part(model.blocks[first:last], tensor, recompute, sequence, shared)
        found.append(known.setdefault(part, part))
    return tuple(found)


@functools.cache
def differing(model: Model, stages: int, chunks: int, tensor: int, recompute: str, sequence: bool) -> tuple[int, ...]:
    """The stages that are not like the stage before them: the first one, and few others."""
    found = parts(model, stages * chunks, tensor, recompute, sequence)
    return tuple(s for s in range(stages) if s == 0 or found[s::stages] != found[s - 1 :: stages])


def _part(blocks: tuple[Block, ...], tensor: int, recompute: str, sequence: bool, shared: float) -> Part:
    whole = tensor if sequence else 1  # ranks that share what is not cut with the layers

    def border(block: Block) -> float:
        return block.border / whole

    def all_kept(block: Block) -> float:
        return block.kept_whole / whole + (block.kept_cut + block.attention) / tensor

    kept, restored, repeated, again = sum(map(all_kept, blocks)), 0.0, 0.0, 0
    if recompute == "attention":
        kept -= sum(block.attention for block in blocks) / tensor
        restored = max(block.attention for block in blocks) / tensor
        repeated = sum(block.attention_flops for block in blocks)
    elif recompute != "none":
        bordered = blocks if recompute == "block" else blocks[:1]
        every = kept
        kept = sum(map(border, bordered))
        restored = (
            max(all_kept(block) - border(block) for block in blocks)
            if recompute == "block"
            else every - border(blocks[0])
        )
        repeated = sum(block.flops for block in blocks)
        again = sum(block.forward_calls for block in blocks)
    held = [block.cut / tensor + block.whole for block in blocks]
    return Part(
        sum(held) - shared / tensor, max(held), sum(block.flops for block in blocks) / tensor, repeated / tensor,
        kept, max(restored, 0.0), border(blocks[0]), max(block.reduced for block in blocks),
        sum(block.forward_calls for block in blocks), sum(block.backward_calls for block in blocks), again,
    )  # fmt: skip
