"""What a stage of a pipeline does, instruction by instruction, and the base class of the schedules that say it."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

__all__ = ["BACKWARDS", "LAST", "SENDS", "Instruction", "Kind", "PipelineSchedule", "ScheduleError", "check_step"]


class Kind(enum.Enum):
    """What an instruction does. The values are the letters of drawings."""

    FORWARD = "F"
    #: Gradients of the input and of the weights, together.
    BACKWARD = "B"
    #: The two parts of a split backward pass: gradients of the input, and gradients of the weights.
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    #: The optimizer's step ("update").
    STEP = "U"
    SEND_ACTIVATION = "SA"
    RECEIVE_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECEIVE_GRADIENT = "RG"


#: Kinds after which the gradient of the stage's input is known.
BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT})
#: Kinds after which the gradient of the weights is known, and the activation is no longer needed.
LAST = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})


class ScheduleError(ValueError):
    """A schedule that would deadlock, compute something else than the gradient, or break a promise."""


@dataclass(frozen=True)
class Instruction:
    """One thing that a stage does.

    ``micro_batch`` counts from 0. For a step it is the last micro-batch whose gradient the step uses.
    ``chunk`` is the chunk of the stage's model part, from 0. With K stages, the chunk c of stage s is the virtual stage
    c K + s. For a transfer it is the chunk of this stage that sends or receives. A step is of all chunks.
    ``version`` says which weights a computation uses: those after that many steps. A backward pass uses the weights of
    its forward pass. For a step it is the version that the step makes.
    ``peer`` is the virtual stage at the other side of a transfer, and None for other kinds.
    """

    kind: Kind
    micro_batch: int = 0
    chunk: int = 0
    version: int = 0
    peer: int | None = None

    def __str__(self) -> str:
        """``F3`` or, in a chunk after the first, ``F3.1``; a transfer names its peer: ``SA3>1``."""
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{self.kind.value}{self.micro_batch}{chunk}{'' if self.peer is None else f'>{self.peer}'}"


class PipelineSchedule(ABC):
    """The order in which the stages of a pipeline compute. One subclass, in a file of its own, for each schedule.

    A schedule says what a stage computes; :func:`collectives.train.pipeline.lowering.lower` adds the transfers, and
    :mod:`collectives.train.pipeline.proof` checks the result before it runs. The methods after :meth:`instructions` are
    promises, which the proof counts again.

    ``chunks`` is the number of chunks of a stage. ValueError if it is not positive, or if it is not 1 and the schedule
    is not ``interleaved``.
    """

    #: The name on command lines.
    name: ClassVar[str]
    #: The promises in words, for K stages, the stage i, M micro-batches and v chunks.
    bubble_formula: ClassVar[str]
    activations_formula: ClassVar[str]
    versions_formula: ClassVar[str] = "1"
    staleness_formula: ClassVar[str] = "0"
    #: Whether a stage may have several chunks.
    interleaved: ClassVar[bool] = False
    #: Whether the run of all micro-batches is one stream with many steps; otherwise they are one batch with one step.
    flushless: ClassVar[bool] = False
    #: Whether the backward pass is split into gradients of the input and gradients of the weights.
    split: ClassVar[bool] = False

    def __init__(self, chunks: int = 1) -> None:
        if chunks < 1:
            raise ValueError(f"a stage has at least one chunk, not {chunks}")
        if chunks > 1 and not self.interleaved:
            raise ValueError(f"{self.name} has one chunk for each stage, not {chunks}; use interleaved_1f1b")
        self.chunks = chunks

    def check(self, stages: int, micro_batches: int) -> None:
        """ValueError if there is no such schedule for so many stages and micro-batches."""
        for what, number in (("stage", stages), ("micro-batch", micro_batches)):
            if number < 1:
                raise ValueError(f"a pipeline needs at least one {what}, not {number}")

    def programs(self, stages: int, micro_batches: int) -> list[list[Instruction]]:
        """The instructions of every stage. ValueError as :meth:`check`."""
        self.check(stages, micro_batches)
        return [list(self.instructions(stage, stages, micro_batches)) for stage in range(stages)]

    @abstractmethod
    def instructions(self, stage: int, stages: int, micro_batches: int) -> Iterator[Instruction]:
        """The computations and steps of ``stage``, from 0, in order; lazy, so that a stream may be very long.

        The arguments have passed :meth:`check`.
        """

    @abstractmethod
    def bubble(self, stages: int, micro_batches: int) -> Fraction:
        """The share of the time in which a stage is idle, in the paper's model.

        All stages are equal, a backward pass lasts twice as long as a forward pass (each of its parts as long as one),
        and transfers and steps last no time.
        """

    @abstractmethod
    def activations(self, stage: int, stages: int, micro_batches: int) -> int:
        """The most activations that ``stage`` holds at once, each that of one micro-batch in one chunk."""

    def versions(self, stage: int, stages: int) -> int:
        """The most versions of the weights that ``stage`` holds at once: the newest ones, that many."""
        return 1

    def staleness(self, stage: int, stages: int) -> int:
        """The most steps by which weights that a gradient comes from are older than those that the step changes."""
        return 0


def check_step(schedule: PipelineSchedule, stages: int, micro_batches: int) -> None:
    """ValueError unless there is such a schedule for batches of so many micro-batches, with a step after each."""
    if not schedule.flushless:
        schedule.check(stages, micro_batches)
        return
    schedule.check(stages, micro_batches * stages)
    steps = (i for i in schedule.programs(stages, micro_batches * stages)[0] if i.kind is Kind.STEP)
    if (after := next(steps).micro_batch + 1) != micro_batches:
        raise ValueError(
            f"{schedule.name} steps after {after} micro-batches, so micro_batches must be {after}, not {micro_batches}"
        )
