"""Runs the instructions of one stage: computations, and the messages between them."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from .batches import MicroBatches
from .blocks import Framework
from .instructions import LAST, SENDS, Instruction, Kind
from .placement import Placement
from .stage import Stage
from .transfers import Channel, Transfers
from .versions import Versions
from .wiring import Wiring

__all__ = ["Executor", "Feed"]

LossFunction = Callable[[Any, Any], Any]


class Feed(Protocol):
    """Where the micro-batches of a program come from."""

    def place(self, micro_batch: int) -> tuple[MicroBatches, int]:
        """The batch of a micro-batch, and its number there."""

    def has_samples(self, micro_batch: int) -> bool:
        """Whether a micro-batch has samples; without any it is left out."""

    def finish(self, micro_batch: int, loss: float) -> None:
        """Take the loss of a micro-batch; called on the last stage only."""

    def step(self, micro_batch: int) -> None:
        """Make the step that uses the gradients up to this micro-batch."""


class _Transfer(NamedTuple):
    """What an instruction moves. `last`: no later one of the program sends the same outputs."""

    channel: Channel
    sends: bool
    last: bool


class Executor:
    """The stages of one rank, ``stages[chunk]``, and what is between their passes.

    ``run`` executes a lowered program (see `lower`). The gradient that it leaves in the parameters is the mean over the
    samples of a batch, so micro-batches count by their lengths, and those without samples are left out. ``ready(chunk,
    name)`` is called when a step's last backward pass has completed a gradient. ``busy`` is the time spent in
    computations, in seconds.
    """

    def __init__(
        self, framework: Framework, stages: Sequence[Stage], wiring: Wiring, transfers: Transfers,
        placement: Placement, ready: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        self._framework, self._stages, self._wiring, self._transfers = framework, stages, wiring, transfers
        self._placement, self._ready = placement, ready
        self._result = wiring.bounds[-1] - 1  # the value that is the model's
        mine = [placement.virtual(chunk) for chunk in range(len(stages))]
        self._sent = [list(wiring.sent(virtual).items()) for virtual in mine]
        self._below = [[(s, values) for (s, t), values in wiring.values.items() if t == virtual] for virtual in mine]
        self._program: Sequence[Instruction] = []
        self._moves: list[_Transfer | None] = []  # of the program's instructions
        self.busy = 0.0
        self.versions_held = 1
        self._clear()

    def abandon(self) -> None:
        """Forget the passes and messages under way, after an error."""
        self._clear()
        self._transfers.abandon()

    def _clear(self) -> None:
        self._inputs: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)
        self._grads: dict[tuple[int, int], dict[int, Any]] = defaultdict(dict)
        self._outputs: dict[tuple[int, int, bool], dict[int, Any]] = {}
        for stage in self._stages:
            stage.drop_all()

    def run(self, program: Sequence[Instruction], feed: Feed, loss_fn: LossFunction, factor: float = 1.0) -> None:
        """Execute a program. `factor` multiplies the gradient of the loss.

        Raises what a stage raises, and PeerFailure if another stage fails.
        """
        self._feed, self._loss_fn, self._factor = feed, loss_fn, factor
        if program is not self._program:
            self._program, self._moves = program, [self._transfer(instruction) for instruction in program]
        self._expected = self._receives(program)
        finals = self._finals(program)
        self._versions = [Versions(stage, program, self._framework.copies_early) for stage in self._stages]
        for index, instruction in enumerate(program):
            if instruction.kind is Kind.STEP:
                for versions in self._versions:
                    versions.before_step()
                feed.step(instruction.micro_batch)
            elif feed.has_samples(instruction.micro_batch):
                self._execute(instruction, self._moves[index], index in finals)
            for versions in self._versions:
                versions.after(index)
        self.versions_held = max(self.versions_held, *(versions.peak for versions in self._versions))
        self._transfers.finish()

    def _transfer(self, instruction: Instruction) -> _Transfer | None:
        """What a message moves; None for an instruction that is none. Sends are in the order of their peers."""
        here, there = self._placement.virtual(instruction.chunk), instruction.peer
        if there is None:
            return None
        back = instruction.kind in (Kind.SEND_GRADIENT, Kind.RECEIVE_GRADIENT)
        ends = [t if s == here else s for s, t in self._wiring.edges if here == (t if back else s)]
        last = max((end for end in ends if not self._placement.has(end)), default=None)
        return _Transfer(Channel(min(here, there), max(here, there), back), instruction.kind in SENDS, there == last)

    def _receives(self, program: Sequence[Instruction]) -> dict[Channel, deque[int]]:
        """The micro-batches that come on every channel, in order."""
        found: dict[Channel, deque[int]] = defaultdict(deque)
        for instruction, move in zip(program, self._moves, strict=True):
            if move is not None and not move.sends:
                found[move.channel].append(instruction.micro_batch)
        return found

    def _finals(self, program: Sequence[Instruction]) -> set[int]:
        """The numbers of the instructions that complete the gradients of a chunk for a step."""
        finals: set[int] = set()
        last: dict[int, int] = {}
        for index, instruction in enumerate(program):
            if instruction.kind in LAST and self._feed.has_samples(instruction.micro_batch):
                last[instruction.chunk] = index
            elif instruction.kind is Kind.STEP:
                finals |= set(last.values())
                last.clear()
        return finals

    def _execute(self, instruction: Instruction, move: _Transfer | None, final: bool) -> None:
        if move is None:
            begin = time.perf_counter()
            self._compute(instruction, final)
            self.busy += time.perf_counter() - begin
        elif move.sends:
            self._send(instruction, move)
        else:
            self._receive(instruction, move.channel)

    def _compute(self, instruction: Instruction, final: bool) -> None:
        chunk, micro_batch = instruction.chunk, instruction.micro_batch
        stage = self._stages[chunk]
        weights = self._versions[chunk].weights(instruction.version)
        ready = (lambda name: self._ready(chunk, name)) if final else None
        if instruction.kind is Kind.FORWARD:
            values = stage.forward(micro_batch, self._taken(chunk, micro_batch), weights)
            self._forward_done(chunk, micro_batch, values)
        elif instruction.kind is Kind.BACKWARD_WEIGHT:
            stage.backward_weight(micro_batch, weights, ready)
        else:
            grads = self._grads.pop((chunk, micro_batch), {})
            if instruction.kind is Kind.BACKWARD:
                below = stage.backward(micro_batch, grads, weights, ready)
            else:
                below = stage.backward_input(micro_batch, grads, weights)
            self._backward_done(chunk, micro_batch, below)

    def _taken(self, chunk: int, micro_batch: int) -> dict[int, Any]:
        """What the blocks of a chunk read from elsewhere."""
        inputs = self._inputs.pop((chunk, micro_batch), {})
        if reads := self._stages[chunk].inputs:
            batch, number = self._feed.place(micro_batch)
            inputs |= {value: self._framework.incoming(batch.input(value, number)) for value in reads}
        return inputs

    def _forward_done(self, chunk: int, micro_batch: int, values: dict[int, Any]) -> None:
        """Hand values to other chunks of this rank, keep those that are sent, and end the model with the loss."""
        if self._placement.virtual(chunk) == self._wiring.stages - 1:
            self._take_loss(chunk, micro_batch, values[self._result])
        remote: dict[int, Any] = {}
        for target, sent in self._sent[chunk]:
            chosen = {value: values[value] for value in sent}
            if self._placement.has(target):
                self._inputs[self._placement.chunk(target), micro_batch] |= chosen
            else:
                remote |= chosen
        if remote:
            self._outputs[chunk, micro_batch, False] = remote

    def _take_loss(self, chunk: int, micro_batch: int, output: Any) -> None:
        batch, number = self._feed.place(micro_batch)
        factor = self._factor * batch.rows(number) / batch.samples
        value, grad = self._framework.loss(output, batch.labels(number), self._loss_fn, factor)
        self._grads[chunk, micro_batch][self._result] = grad
        self._feed.finish(micro_batch, value)

    def _backward_done(self, chunk: int, micro_batch: int, below: dict[int, Any]) -> None:
        """Hand gradients to other chunks of this rank, and keep those that are sent."""
        remote: dict[int, Any] = {}
        for source, values in self._below[chunk]:
            chosen = {value: below[value] for value in values}
            if self._placement.has(source):
                self._add((self._placement.chunk(source), micro_batch), chosen)
            else:
                remote |= chosen
        if remote:
            self._outputs[chunk, micro_batch, True] = remote

    def _add(self, place: tuple[int, int], grads: dict[int, Any]) -> None:
        """Add gradients to those that have come for the same values."""
        known = self._grads[place]
        for value, grad in grads.items():
            known[value] = grad if value not in known else known[value] + grad

    def _send(self, instruction: Instruction, move: _Transfer) -> None:
        channel = move.channel
        outputs = self._outputs[instruction.chunk, instruction.micro_batch, channel.back]
        values = self._wiring.values[channel.source, channel.target]
        arrays = [self._framework.outgoing(outputs[value]) for value in values]
        self._transfers.send(channel, instruction.micro_batch, self._key(instruction.micro_batch), arrays)
        if move.last:
            del self._outputs[instruction.chunk, instruction.micro_batch, channel.back]

    def _receive(self, instruction: Instruction, channel: Channel) -> None:
        place = (instruction.chunk, instruction.micro_batch)
        waiting = self._expected[channel]
        while waiting.popleft() != instruction.micro_batch:
            pass
        following = next(((m, self._key(m)) for m in waiting if self._feed.has_samples(m)), None)
        key = self._key(instruction.micro_batch)
        arrays = self._transfers.receive(channel, instruction.micro_batch, key, following)
        values = self._wiring.values[channel.source, channel.target]
        chosen = {value: self._framework.incoming(array) for value, array in zip(values, arrays, strict=True)}
        if channel.back:
            self._add(place, chosen)
        else:
            self._inputs[place] |= chosen

    def _key(self, micro_batch: int) -> Any:
        batch, number = self._feed.place(micro_batch)
        return batch.key(number)
