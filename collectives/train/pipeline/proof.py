"""The proof of a pipeline schedule, before it runs.

For every stage: each micro-batch passes each virtual stage once, forward and backward, in an order in which all inputs
are there; all stages step after the same micro-batches, and a backward pass uses the weights of its forward pass. For
all stages together: messages match in order, and nothing deadlocks. Activations and weights are counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .instructions import LAST, Instruction, Kind, PipelineSchedule, ScheduleError
from .lowering import chain, lowered
from .memory import Held, held
from .replay import BUFFERS, Durations, Timeline, replay

__all__ = ["Proof", "prove", "verify"]

Edges = Sequence[tuple[int, int]]


class Proof(NamedTuple):
    """What the proof of a schedule has counted: what each stage holds, and when each instruction runs.

    A forward pass takes one unit of time, a backward pass two, a transfer none.
    """

    held: list[Held]
    timeline: Timeline


def verify(
    schedule: PipelineSchedule,
    stages: int,
    micro_batches: int,
    *,
    edges: Edges | None = None,
    activation_bytes: Sequence[float] | None = None,
    buffers: int = BUFFERS,
) -> Proof:
    """Prove a schedule for so many stages and micro-batches, and that it keeps its promises.

    ``edges`` between virtual stages are those of a chain by default. ``activation_bytes`` has, for each virtual stage,
    the size of the activation of a micro-batch (default: 1). Sends may be ahead of receives by ``buffers`` messages
    between the same virtual stages; with 0 they are synchronous. ScheduleError if the proof fails, ValueError if there
    is no such schedule or an edge does not lead to a later virtual stage.
    """
    edges = chain(schedule.chunks * stages) if edges is None else edges
    programs = lowered(schedule, stages, micro_batches, edges)
    found = prove(programs, schedule.chunks, micro_batches, edges, activation_bytes=activation_bytes, buffers=buffers)
    for stage, counted in enumerate(found.held):
        promises = {
            "activations": (counted.activations, schedule.activations(stage, stages, micro_batches)),
            "versions": (counted.versions, schedule.versions(stage, stages)),
            "staleness": (max(counted.staleness), schedule.staleness(stage, stages)),
        }
        for what, (number, promised) in promises.items():
            if number > promised:
                raise ScheduleError(f"{schedule.name}, stage {stage}: {what} {number}, promised are {promised}")
    return found


def prove(
    programs: Sequence[Sequence[Instruction]],
    chunks: int,
    micro_batches: int,
    edges: Edges,
    *,
    activation_bytes: Sequence[float] | None = None,
    buffers: int = BUFFERS,
) -> Proof:
    """Prove the lowered programs of all stages, whoever wrote them. Arguments as :func:`verify`.

    ScheduleError, which names the stage and the instruction, if the proof fails.
    """
    stages = len(programs)
    sizes = [1.0] * (chunks * stages) if activation_bytes is None else activation_bytes
    found = []
    for stage, program in enumerate(programs):
        try:
            _Order(stage, stages, chunks, micro_batches, edges).check(program)
            found.append(held(program, sizes[stage::stages]))
        except ScheduleError as error:
            raise ScheduleError(f"stage {stage}: {error}") from None
    steps = [[i.micro_batch for i in program if i.kind is Kind.STEP] for program in programs]
    for stage, own in enumerate(steps):
        if own != steps[0]:
            raise ScheduleError(f"stage {stage} steps after micro-batches {own}, stage 0 after {steps[0]}")
    return Proof(found, replay(programs, Durations.equal(chunks * stages), buffers))


class _Fact(NamedTuple):
    """What an instruction makes true: a kind of work is done for a micro-batch on a virtual stage.

    A whole backward pass makes two facts, those of its parts.
    """

    kind: Kind
    micro_batch: int
    virtual: int
    peer: int | None = None

    def __str__(self) -> str:
        peer = "" if self.peer is None else f" with virtual stage {self.peer}"
        return f"{self.kind.name.lower()} of micro-batch {self.micro_batch} on virtual stage {self.virtual}{peer}"


class _Order:
    """What must be done on one stage, and in which order."""

    def __init__(self, stage: int, stages: int, chunks: int, micro_batches: int, edges: Edges):
        self.stage, self.stages, self.chunks, self.micro_batches = stage, stages, chunks, micro_batches
        virtuals = range(stage, chunks * stages, stages)
        self.inputs = {v: [source for source, target in edges if target == v] for v in virtuals}
        self.outputs = {v: [target for source, target in edges if source == v] for v in virtuals}

    def check(self, program: Sequence[Instruction]) -> None:
        """ScheduleError if something is missing, done twice, superfluous, or done before what it needs."""
        wanted = dict.fromkeys(self._wanted())
        done: set[_Fact] = set()
        for instruction in program:
            for fact in self._facts(instruction):
                if fact not in wanted:
                    raise ScheduleError(f"{instruction} is superfluous")
                if fact in done:
                    raise ScheduleError(f"{instruction} is done twice")
                for needed in self._needs(fact):
                    if needed not in done:
                        raise ScheduleError(f"{instruction} comes before {needed}")
                done.add(fact)
        for fact in wanted:
            if fact not in done:
                raise ScheduleError(f"{fact} is missing")
        self._check_steps(program)
        _check_versions(program)

    def _wanted(self) -> Iterator[_Fact]:
        """All that must be done, each once."""
        for micro_batch in range(self.micro_batches):
            for virtual in self.inputs:
                for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
                    yield _Fact(kind, micro_batch, virtual)
                for peer in filter(self._elsewhere, self.inputs[virtual]):
                    yield _Fact(Kind.RECEIVE_ACTIVATION, micro_batch, virtual, peer)
                    yield _Fact(Kind.SEND_GRADIENT, micro_batch, virtual, peer)
                for peer in filter(self._elsewhere, self.outputs[virtual]):
                    yield _Fact(Kind.SEND_ACTIVATION, micro_batch, virtual, peer)
                    yield _Fact(Kind.RECEIVE_GRADIENT, micro_batch, virtual, peer)

    def _elsewhere(self, virtual: int) -> bool:
        return virtual % self.stages != self.stage

    def _facts(self, instruction: Instruction) -> list[_Fact]:
        kinds = {
            Kind.BACKWARD: [Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT],
            Kind.STEP: [],
        }.get(instruction.kind, [instruction.kind])
        virtual = instruction.chunk * self.stages + self.stage
        return [_Fact(kind, instruction.micro_batch, virtual, instruction.peer) for kind in kinds]

    def _needs(self, fact: _Fact) -> list[_Fact]:
        """What must be done before, on this stage."""
        kind, micro_batch, virtual, _ = fact
        if kind is Kind.FORWARD:
            return self._arrived(Kind.FORWARD, Kind.RECEIVE_ACTIVATION, fact, self.inputs[virtual])
        if kind is Kind.BACKWARD_INPUT:
            gradients = self._arrived(Kind.BACKWARD_INPUT, Kind.RECEIVE_GRADIENT, fact, self.outputs[virtual])
            return [_Fact(Kind.FORWARD, micro_batch, virtual), *gradients]
        if kind is Kind.SEND_ACTIVATION:
            return [_Fact(Kind.FORWARD, micro_batch, virtual)]
        if kind in (Kind.BACKWARD_WEIGHT, Kind.SEND_GRADIENT):
            return [_Fact(Kind.BACKWARD_INPUT, micro_batch, virtual)]
        return []

    def _arrived(self, computed: Kind, received: Kind, fact: _Fact, peers: list[int]) -> list[_Fact]:
        """For each peer: its tensor has been received from another stage, or computed on this one."""
        return [
            _Fact(received, fact.micro_batch, fact.virtual, peer)
            if self._elsewhere(peer)
            else _Fact(computed, fact.micro_batch, peer)
            for peer in peers
        ]

    def _check_steps(self, program: Sequence[Instruction]) -> None:
        """ScheduleError unless each step follows the gradients of the micro-batches up to its own, and no others."""
        gradients: set[tuple[int, int]] = set()  # of micro-batches, in chunks, that no step has used
        first = 0
        for instruction in program:
            if instruction.kind in LAST:
                gradients.add((instruction.micro_batch, instruction.chunk))
            elif instruction.kind is Kind.STEP:
                batch = range(first, instruction.micro_batch + 1)
                if not batch or gradients != set(itertools.product(batch, range(self.chunks))):
                    raise ScheduleError(
                        f"{instruction} does not follow exactly the gradients of micro-batches {first} to "
                        f"{instruction.micro_batch}"
                    )
                gradients, first = set(), instruction.micro_batch + 1
        if gradients:
            raise ScheduleError(f"the gradients of {len(gradients)} micro-batches are left without a step")


def _check_versions(program: Sequence[Instruction]) -> None:
    """ScheduleError unless all computations for a micro-batch in a chunk use the same weights, made before, and steps
    make versions 1, 2 and so on."""
    newest = 0
    used: dict[tuple[int, int], int] = {}
    for instruction in program:
        if instruction.kind is Kind.STEP:
            newest += 1
            if instruction.version != newest:
                raise ScheduleError(f"{instruction} makes version {instruction.version} after {newest - 1}")
        elif instruction.peer is None:
            if instruction.version > newest:
                raise ScheduleError(f"{instruction} uses version {instruction.version}, which no step has made yet")
            if (
                used.setdefault((instruction.micro_batch, instruction.chunk), instruction.version)
                != instruction.version
            ):
                raise ScheduleError(f"{instruction} uses other weights than its forward pass")
