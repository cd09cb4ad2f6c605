"""Programs of all stages run side by side on a clock: when each instruction starts, or which stages deadlock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from .instructions import SENDS, Instruction, Kind, ScheduleError

__all__ = ["BUFFERS", "Durations", "Span", "Timeline", "replay"]

#: The number of messages that may be under way from one virtual stage to another: sends are double-buffered.
BUFFERS = 2


@dataclass(frozen=True)
class Durations:
    """How long instructions last, in one unit of time. The sequences have one value for each virtual stage.

    ``backward`` is the whole backward pass, the next two are its parts. ``transfer`` is the time from a send to the
    arrival, in which both stages may compute. ``step`` is the time of an optimizer's step.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    backward_input: Sequence[float]
    backward_weight: Sequence[float]
    transfer: float = 0
    step: float = 0

    @classmethod
    def equal(cls, virtual_stages: int, forward: float = 1, transfer: float = 0) -> Durations:
        """The papers' model: equal stages, where each part of a backward pass is as long as a forward pass."""
        part = [forward] * virtual_stages
        return cls(part, [2 * forward] * virtual_stages, part, part, transfer)

    def of(self, kind: Kind, virtual_stage: int) -> float:
        """How long a computation or a step lasts on a virtual stage."""
        if kind is Kind.FORWARD:
            return self.forward[virtual_stage]
        if kind is Kind.BACKWARD:
            return self.backward[virtual_stage]
        if kind is Kind.STEP:
            return self.step
        return (self.backward_input if kind is Kind.BACKWARD_INPUT else self.backward_weight)[virtual_stage]


@dataclass(frozen=True)
class Span:
    """When an instruction starts and ends. For a transfer that is how long the stage waits."""

    instruction: Instruction
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The spans of each stage, in order."""

    stages: list[list[Span]]

    @property
    def length(self) -> float:
        """The time from the first start to the last end on any stage."""
        return max(spans[-1].end for spans in self.stages if spans)

    def idle(self, stage: int) -> float:
        """The time in which ``stage`` neither computes nor steps."""
        busy = [s.end - s.start for s in self.stages[stage] if s.instruction.peer is None]
        return self.length - sum(busy)

    @property
    def bubble(self) -> float:
        """The share of idle time, on average over the stages."""
        return sum(map(self.idle, range(len(self.stages)))) / (self.length * len(self.stages))


@dataclass
class _Channel:
    """The messages from one virtual stage to another: their micro-batches, and when they arrive and are received."""

    micro_batches: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    received: list[float] = field(default_factory=list)


def replay(programs: Sequence[Sequence[Instruction]], durations: Durations, buffers: int = BUFFERS) -> Timeline:
    """Run the lowered programs of all stages, each instruction as early as its stage and its messages allow.

    A receive waits for its message. A send waits while ``buffers`` messages of the same two virtual stages have not
    been received; with 0 it is synchronous, and waits until its own is. Whether programs deadlock does not depend on
    the durations. ScheduleError if they do, or if a receive meets the message of another micro-batch.
    """
    run = _Replay(programs, durations, buffers)
    waiting = {stage: run.process(stage) for stage in range(len(programs))}
    while waiting:
        before = run.progress
        waiting = {stage: process for stage, process in waiting.items() if next(process, "ended") != "ended"}
        if waiting and run.progress == before:
            at = ", ".join(f"stage {stage} at {programs[stage][len(run.spans[stage])]}" for stage in waiting)
            raise ScheduleError(f"deadlock with {buffers} buffers: {at} wait for each other")
    return Timeline(run.spans)


class _Replay:
    """The stages as processes, each a generator that yields whenever it can do no more for now."""

    def __init__(self, programs: Sequence[Sequence[Instruction]], durations: Durations, buffers: int):
        self.programs, self.durations, self.buffers = programs, durations, buffers
        self.spans: list[list[Span]] = [[] for _ in programs]
        self.channels: defaultdict[tuple[int, int], _Channel] = defaultdict(_Channel)
        #: Sends that were begun, and instructions that were ended.
        self.progress = 0

    def process(self, stage: int) -> Generator[None, None, None]:
        """Run the program of ``stage``, and append to its spans."""
        now: float = 0
        for instruction in self.programs[stage]:
            start, virtual = now, instruction.chunk * len(self.programs) + stage
            if instruction.peer is None:
                now += self.durations.of(instruction.kind, virtual)
            elif instruction.kind in SENDS:
                now = yield from self._send(instruction, self.channels[virtual, instruction.peer], now)
            else:
                now = yield from self._receive(instruction, self.channels[instruction.peer, virtual], now, stage)
            self.spans[stage].append(Span(instruction, start, now))
            self.progress += 1

    def _send(self, send: Instruction, channel: _Channel, now: float) -> Generator[None, None, float]:
        number = len(channel.arrivals)
        if self.buffers and number >= self.buffers:
            while len(channel.received) <= number - self.buffers:
                yield
            now = max(now, channel.received[number - self.buffers])
        channel.micro_batches.append(send.micro_batch)
        channel.arrivals.append(now + self.durations.transfer)
        self.progress += 1
        if self.buffers:
            return now
        while len(channel.received) <= number:
            yield
        return channel.received[number]

    def _receive(self, receive: Instruction, channel: _Channel, now: float, stage: int) -> Generator[None, None, float]:
        number = len(channel.received)
        while len(channel.arrivals) <= number:
            yield
        if channel.micro_batches[number] != receive.micro_batch:
            raise ScheduleError(
                f"stage {stage}: {receive} meets the message of micro-batch {channel.micro_batches[number]}"
            )
        earliest = now if self.buffers else now + self.durations.transfer
        channel.received.append(max(earliest, channel.arrivals[number]))
        return channel.received[number]
