"""``Stage``: consecutive blocks of a model, and what their backward passes need, micro-batch by micro-batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from .activations import Activations
from .blocks import Block, Framework

__all__ = ["Stage"]

Ready = Callable[[str], None]


@dataclass
class _Kept:
    """What a stage keeps of a micro-batch between its passes."""

    inputs: dict[int, Any]
    saved: dict[int, Any] = field(default_factory=dict)
    grads: dict[int, Any] = field(default_factory=dict)  # of the blocks' results, for a split backward pass
    before: Any = None  # what the forward pass has changed, as it was before, for recomputation
    nbytes: int = 0


class Stage:
    """Some blocks of a graph, by their numbers in it, with the interface that the executor of a pipeline needs.

    ``forward(micro_batch, inputs)`` takes what the blocks read from elsewhere, by value (see `Graph`), and returns all
    values; ``backward(micro_batch, grads)`` takes the gradients of values that other stages read, and returns those of
    the values in `received`. ``backward_input`` and ``backward_weight`` are its two halves.

    With `recompute` only the inputs are kept between the passes. The backward pass repeats the forward pass before,
    with the same random numbers (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 3). What a
    pass changes besides, as BatchNorm its statistics, it changes once.

    `activations` counts what is kept. ``inputs`` are the inputs of the model that the blocks read.
    """

    def __init__(
        self, framework: Framework, modules: Mapping[int, Any], sources: Sequence[tuple[int, ...]],
        received: Sequence[int], activations: Activations, *, recompute: bool,
    ) -> None:  # fmt: skip
        self._framework, self._modules = framework, list(modules.values())
        self.blocks: dict[int, Block] = {number: framework.block(number, m) for number, m in modules.items()}
        self._sources, self._received, self.recompute = sources, list(received), recompute
        self.inputs = sorted({source for number in self.blocks for source in self._sources[number] if source < 0})
        self._differentiated = self._differentiable()
        self._first_use = {name: number for number in reversed(self.blocks) for name in self.blocks[number].parameters}
        self._kept: dict[int, _Kept] = {}
        self._activations = activations

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of all blocks by name, first block first; a shared one once."""
        return {name: p for block in self.blocks.values() for name, p in block.parameters.items()}

    def _differentiable(self) -> set[int]:
        """The values whose gradient is needed: those of other stages, and those that depend on parameters."""
        found = set(self._received)
        for number, block in self.blocks.items():
            if block.parameters or any(source in found for source in self._sources[number]):
                found.add(number)
        return found

    def _using(self, weights: Mapping[str, Any] | None) -> AbstractContextManager[None]:
        """Compute with other weights in this context, if there are any."""
        return contextlib.nullcontext() if weights is None else self._with_others(weights)

    @contextlib.contextmanager
    def _with_others(self, weights: Mapping[str, Any]) -> Iterator[None]:
        for block in self.blocks.values():
            block.use(weights)
        try:
            yield
        finally:
            for block in reversed(self.blocks.values()):  # blocks may share a parameter
                block.use(None)

    def copy_weights(self) -> dict[str, Any]:
        """Copies of all parameters by name, for the argument `weights` of the passes."""
        return {name: copy for block in self.blocks.values() for name, copy in block.copy_weights().items()}

    def forward(
        self, micro_batch: int, inputs: dict[int, Any], weights: Mapping[str, Any] | None = None
    ) -> dict[int, Any]:
        """Run the blocks. Returns all values by number, `inputs` included."""
        kept = _Kept(inputs)
        if self.recompute:
            kept.before = self._framework.passing_state(self._modules)
        values, kept.saved = self._run(inputs, weights, keep=not self.recompute)
        if self.recompute:
            kept.before = self._framework.changed_since(self._modules, kept.before)
        self._kept[micro_batch] = kept
        self._activations.change(0, 1)
        self._count(kept)
        return values

    def _run(
        self, inputs: dict[int, Any], weights: Mapping[str, Any] | None, keep: bool
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        values, saved = dict(inputs), {}
        with self._using(weights):
            for number, block in self.blocks.items():
                sources = self._sources[number]
                asked = [source in self._differentiated for source in sources]
                values[number], saved[number] = block.forward([values[source] for source in sources], asked, keep)
        return values, saved if keep else {}

    def _count(self, kept: _Kept) -> None:
        """Measure what is kept of a micro-batch."""
        memory: dict[int, int] = {}
        for number, saved in kept.saved.items():
            memory |= self.blocks[number].held(saved)
        borders = [kept.inputs[value] for value in self._received] if not kept.saved else []
        nbytes = sum(memory.values()) + sum(value.nbytes for value in borders)
        self._activations.change(nbytes - kept.nbytes)
        kept.nbytes = nbytes

    def _restored(self, micro_batch: int, weights: Mapping[str, Any] | None) -> _Kept:
        """What was kept of a micro-batch; if that is the inputs only, after the forward pass was repeated."""
        kept = self._kept[micro_batch]
        if self.recompute and not kept.saved:
            now = self._framework.passing_state(self._modules)
            self._framework.set_passing_state(self._modules, kept.before)
            _, kept.saved = self._run(kept.inputs, weights, keep=True)
            self._framework.set_passing_state(self._modules, now)
            self._count(kept)
        return kept

    def _drop(self, micro_batch: int) -> None:
        self._activations.change(-self._kept.pop(micro_batch).nbytes, -1)

    def backward(
        self, micro_batch: int, grads: dict[int, Any], weights: Mapping[str, Any] | None = None,
        ready: Ready | None = None,
    ) -> dict[int, Any]:  # fmt: skip
        """Add to the parameters' gradients. Returns the gradients of the received values.

        ``ready(name)`` is called for each parameter as soon as this pass adds nothing more to its gradient.
        """
        kept = self._restored(micro_batch, weights)
        with self._using(weights):
            for number in reversed(self.blocks):
                if (grad := grads.pop(number, None)) is not None and number in self._differentiated:
                    self._spread(grads, number, self.blocks[number].backward(kept.saved[number], grad))
                self._tell(number, ready)
        self._drop(micro_batch)
        return {value: grads[value] for value in self._received}

    def backward_input(
        self, micro_batch: int, grads: dict[int, Any], weights: Mapping[str, Any] | None = None
    ) -> dict[int, Any]:
        """As `backward`, but leave the parameters' gradients to `backward_weight`."""
        kept = self._restored(micro_batch, weights)
        with self._using(weights):
            for number in reversed(self.blocks):
                if (grad := grads.pop(number, None)) is not None and number in self._differentiated:
                    kept.grads[number] = grad
                    self._spread(grads, number, self.blocks[number].backward_input(kept.saved[number], grad))
        return {value: grads[value] for value in self._received}

    def backward_weight(
        self, micro_batch: int, weights: Mapping[str, Any] | None = None, ready: Ready | None = None
    ) -> None:
        """Add to the parameters' gradients, after `backward_input`."""
        kept = self._kept[micro_batch]
        with self._using(weights):
            for number in reversed(self.blocks):
                if number in kept.grads:
                    self.blocks[number].backward_weight(kept.saved[number], kept.grads.pop(number))
                self._tell(number, ready)
        self._drop(micro_batch)

    def _spread(self, grads: dict[int, Any], number: int, below: Sequence[Any]) -> None:
        """Add a block's gradients to those of the values that it has read."""
        for source, grad in zip(self._sources[number], below, strict=True):
            if grad is not None:
                grads[source] = grad if source not in grads else grads[source] + grad

    def _tell(self, number: int, ready: Ready | None) -> None:
        if ready is not None:
            for name in reversed(list(self.blocks[number].parameters)):
                if self._first_use[name] == number:
                    ready(name)

    def drop_all(self) -> None:
        """Forget the passes under way, after an error."""
        for micro_batch in list(self._kept):
            self._drop(micro_batch)
