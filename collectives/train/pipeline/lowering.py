"""From what stages compute to what they also send and receive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .instructions import BACKWARDS, Instruction, Kind, PipelineSchedule

__all__ = ["chain", "lower", "lowered"]


def chain(virtual_stages: int) -> list[tuple[int, int]]:
    """The edges of a model whose virtual stages follow each other: (0, 1), (1, 2) and so on."""
    return [(stage, stage + 1) for stage in range(virtual_stages - 1)]


def lower(
    instructions: Iterable[Instruction], stage: int, stages: int, edges: Sequence[tuple[int, int]]
) -> Iterator[Instruction]:
    """The instructions of ``stage`` with the transfers that they need, lazily.

    ``edges`` are the pairs (source, target) of virtual stages between which activations go; gradients go back along
    them. A computation is preceded by the receives of its inputs and followed by the sends of its result; these are in
    the order of the peers. Between virtual stages of one stage nothing is sent: the executor hands the tensor over.
    ValueError for an edge that does not lead from a virtual stage to a later one.
    """
    for source, target in edges:
        if not 0 <= source < target:
            raise ValueError(f"an edge leads from a virtual stage to a later one, not from {source} to {target}")
    before: dict[int, list[int]] = defaultdict(list)
    after: dict[int, list[int]] = defaultdict(list)
    for source, target in sorted(edges):
        if (target - source) % stages:
            after[source].append(target)
            before[target].append(source)
    for instruction in instructions:
        virtual = instruction.chunk * stages + stage
        if instruction.kind is Kind.FORWARD:
            yield from _transfers(Kind.RECEIVE_ACTIVATION, instruction, before[virtual])
            yield instruction
            yield from _transfers(Kind.SEND_ACTIVATION, instruction, after[virtual])
        elif instruction.kind in BACKWARDS:
            yield from _transfers(Kind.RECEIVE_GRADIENT, instruction, after[virtual])
            yield instruction
            yield from _transfers(Kind.SEND_GRADIENT, instruction, before[virtual])
        else:
            yield instruction


def lowered(
    schedule: PipelineSchedule, stages: int, micro_batches: int, edges: Sequence[tuple[int, int]] | None = None
) -> list[list[Instruction]]:
    """The instructions of all stages with their transfers, along ``edges`` (default: those of a chain).

    ValueError if there is no such schedule for so many stages and micro-batches, or as :func:`lower`.
    """
    last = schedule.chunks * stages - 1
    edges = chain(last + 1) if edges is None else edges
    if wrong := [edge for edge in edges if max(edge) > last]:
        raise ValueError(f"edge {wrong[0]} leads to a virtual stage that is not there: the last one is {last}")
    programs = schedule.programs(stages, micro_batches)
    return [list(lower(program, stage, stages, edges)) for stage, program in enumerate(programs)]


def _transfers(kind: Kind, cause: Instruction, peers: list[int]) -> Iterator[Instruction]:
    for peer in peers:
        yield Instruction(kind, cause.micro_batch, cause.chunk, peer=peer)
