"""What a stage sees of the blocks of a model, and of the library that they are from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from ..models.nn import Array

__all__ = ["Block", "Framework", "LossOf"]


class LossOf(NamedTuple):
    """The loss of a micro-batch, the mean over its samples, and a gradient with respect to the model's output."""

    value: float
    grad: Any


class Block(Protocol):
    """A piece of a model with code for its derivative. It keeps nothing between calls: `saved` has what is needed."""

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The trainable parameters by their names in the model."""

    def forward(self, inputs: Sequence[Any], differentiated: Sequence[bool], keep: bool) -> tuple[Any, Any]:
        """The result, and what the backward pass needs: None unless `keep`.

        ``differentiated[i]`` says whether the gradient of input i will be asked for.
        """

    def backward(self, saved: Any, grad: Any) -> Sequence[Any]:
        """Add to the gradients of the parameters. Returns those of the inputs, None where they are not asked for."""

    def backward_input(self, saved: Any, grad: Any) -> Sequence[Any]:
        """The first half of `backward`: the gradients of the inputs."""

    def backward_weight(self, saved: Any, grad: Any) -> None:
        """The second half of `backward`, after the first one: add to the gradients of the parameters."""

    def held(self, saved: Any) -> Mapping[int, int]:
        """The memory that `saved` keeps alive, without parameters: sizes in bytes by address."""

    def use(self, weights: Mapping[str, Any] | None) -> None:
        """Compute with these weights, by name, instead of the parameters' own; with None, with their own again."""

    def copy_weights(self) -> dict[str, Any]:
        """Copies of the parameters by name, for `use`."""

    def flops(self, inputs: Sequence[Any]) -> float:
        """Floating-point operations of a forward pass."""


class Framework(Protocol):
    """The library that blocks are from: NumPy with this package's layers, or torch."""

    @property
    def copies_early(self) -> bool:
        """Whether weights must be copied before their first use if a step comes before their last use."""

    def block(self, number: int, block: Any) -> Block:
        """The interface of block `number` of a model."""

    def model(self, blocks: Mapping[int, Any], names: Mapping[str, Any]) -> Any:
        """The blocks of one rank as a network whose parameters have the `names` of the whole model."""

    def state(self, model: Any) -> dict[str, Array]:
        """All parameters of what `model` returned, and other arrays that it keeps, by their names in the whole model.

        They are the model's own, to be changed in place.
        """

    def adapt(self, model: Any, opt: Any) -> tuple[Any, Any]:
        """`Model` and `Handle` (see train.flat) of what `model` returned, and of its optimizer."""

    def part(self, batch: Any, start: int, stop: int) -> Any:
        """Rows of an input of the model or of its labels."""

    def incoming(self, array: Array) -> Any:
        """What blocks compute with, for an array of another stage."""

    def outgoing(self, value: Any) -> Array:
        """A contiguous array for another stage."""

    def passing_state(self, blocks: Sequence[Any]) -> Any:
        """What a forward pass of the blocks changes: random numbers, and arrays such as the statistics of norms."""

    def changed_since(self, blocks: Sequence[Any], state: Any) -> Any:
        """A state of `passing_state` without the arrays that have not changed since."""

    def set_passing_state(self, blocks: Sequence[Any], state: Any) -> None:
        """Go back to a state of `passing_state`."""

    def loss(self, output: Any, labels: Any, loss_fn: Callable[[Any, Any], Any], factor: float) -> LossOf:
        """``loss_fn(output, labels)``, and `factor` times its gradient."""

    def stepped(self) -> None:
        """Forget what was made of weights that a step within a stream has changed."""

    def gradient(self, parameter: Any) -> Array:
        """The gradient of a parameter as an array of its shape, to be changed in place; zeros if it has none."""

    def take_gradient(self, parameter: Any) -> Array | None:
        """The gradient of a parameter, which it then lacks; None if it has none."""

    def values(self, parameter: Any) -> Array:
        """The parameter as an array of its shape, to be changed in place."""
