"""`Block` and `Framework` for this package's layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..flat import numpy_model
from ..models.nn import Array, Layer, Output, Parameter
from .blocks import LossOf

__all__ = ["NumpyFramework"]


class NumpyBlock:
    """A layer (see `Block`). What it saves is what the layer saves, and which gradients of inputs are asked for."""

    def __init__(self, layer: Layer, names: Mapping[int, str]) -> None:
        self._layer = layer
        self._own = {names[id(p)]: p for p in layer.parameters().values()}
        self._live: dict[str, Array] = {}
        self._splits = not self._own or type(layer).backward_weight is not Layer.backward_weight

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """See `Block.parameters`."""
        return self._own

    def forward(self, inputs: Sequence[Array], differentiated: Sequence[bool], keep: bool) -> tuple[Array, Any]:
        """See `Block.forward`."""
        output, saved = self._layer.forward(*inputs)
        return output, (saved, list(differentiated)) if keep else None

    def backward(self, saved: Any, grad: Array) -> Sequence[Array | None]:
        """See `Block.backward`."""
        of_layer, asked = saved
        return _asked(self._layer.backward(of_layer, grad, any(asked)), asked)

    def backward_input(self, saved: Any, grad: Array) -> Sequence[Array | None]:
        """See `Block.backward_input`. A layer without the two halves does all of the pass here."""
        of_layer, asked = saved
        if not self._splits:
            return self.backward(saved, grad)
        return _asked(self._layer.backward_input(of_layer, grad) if any(asked) else None, asked)

    def backward_weight(self, saved: Any, grad: Array) -> None:
        """See `Block.backward_weight`."""
        if self._splits:
            self._layer.backward_weight(saved[0], grad)

    def held(self, saved: Any) -> Mapping[int, int]:
        """See `Block.held`."""
        return {_address(array): array.nbytes for array in _arrays(saved[0])}

    def use(self, weights: Mapping[str, Array] | None) -> None:
        """See `Block.use`."""
        if weights is None:
            for name, parameter in self._own.items():
                parameter.data = self._live[name]
            return
        self._live = {name: parameter.data for name, parameter in self._own.items()}
        for name, parameter in self._own.items():
            parameter.data = weights[name]

    def copy_weights(self) -> dict[str, Array]:
        """See `Block.copy_weights`."""
        return {name: parameter.data.copy() for name, parameter in self._own.items()}

    def flops(self, inputs: Sequence[Array]) -> float:
        """See `Block.flops`."""
        return self._layer.flops(self._layer.forward(*inputs)[0])


def _asked(grads: Any, asked: Sequence[bool]) -> Sequence[Array | None]:
    below = grads if isinstance(grads, tuple) else (grads,) * len(asked)
    return [grad if wanted else None for grad, wanted in zip(below, asked, strict=True)]


def _arrays(saved: Any) -> list[Array]:
    """The arrays in nested tuples and lists."""
    if isinstance(saved, tuple | list):
        return [array for item in saved for array in _arrays(item)]
    return [saved] if isinstance(saved, np.ndarray) else []


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class Layers:
    """The layers of one rank as a network: as much of a `Sequential` as `distribute` needs."""

    def __init__(self, layers: Sequence[Any], parameters: Sequence[Parameter]) -> None:
        self.layers, self._parameters = list(layers), list(parameters)

    def parameters(self) -> list[Parameter]:
        """All parameters, first block first."""
        return list(self._parameters)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return {p.name: p.data.copy() for p in self._parameters}

    def register_load_state_dict_post_hook(self, hook: Callable[[Any], None]) -> None:
        """Nothing: layers have no states of their own, and a pipeline tells of what is loaded into it."""


class NumpyFramework:
    """This package's layers (see `Framework`). `dtype` is the type of the inputs of the model's layers."""

    copies_early = False

    def __init__(self, names: Mapping[int, str], dtype: Any) -> None:
        self._names, self._dtype = names, np.dtype(dtype)

    def block(self, number: int, block: Layer) -> NumpyBlock:
        """See `Framework.block`."""
        return NumpyBlock(block, self._names)

    def model(self, blocks: Mapping[int, Any], names: Mapping[str, Parameter]) -> Layers:
        """See `Framework.model`."""
        for name, parameter in names.items():
            parameter.name = name
        return Layers(list(blocks.values()), list(names.values()))

    def state(self, model: Layers) -> dict[str, Array]:
        """See `Framework.state`."""
        return {parameter.name: parameter.data for parameter in model.parameters()}

    def adapt(self, model: Any, opt: Any) -> tuple[Any, Any]:
        """See `Framework.adapt`."""
        return numpy_model.adapt(model, opt)

    def part(self, batch: Any, start: int, stop: int) -> Array:
        """See `Framework.part`. Inputs get the type of the layers, as in `Sequential`; so do not labels."""
        return np.asarray(batch)[start:stop]

    def incoming(self, array: Any) -> Array:
        """See `Framework.incoming`."""
        return np.asarray(array, dtype=self._dtype)

    def outgoing(self, value: Array) -> Array:
        """See `Framework.outgoing`."""
        return np.ascontiguousarray(value)

    def passing_state(self, blocks: Sequence[Layer]) -> Any:
        """See `Framework.passing_state`."""
        return [generator.bit_generator.state for layer in blocks for generator in layer.generators()]

    def changed_since(self, blocks: Sequence[Layer], state: Any) -> Any:
        """See `Framework.changed_since`. Layers keep no arrays."""
        return state

    def set_passing_state(self, blocks: Sequence[Layer], state: Any) -> None:
        """See `Framework.set_passing_state`."""
        generators = [generator for layer in blocks for generator in layer.generators()]
        for generator, one in zip(generators, state, strict=True):
            generator.bit_generator.state = one

    def loss(self, output: Array, labels: Any, loss_fn: Callable[[Any, Any], Any], factor: float) -> LossOf:
        """See `Framework.loss`. `loss_fn` gets an `Output`, as it does of a network."""
        end: Any = _End()
        loss = loss_fn(Output(end, output, []), labels)
        loss.backward()
        return LossOf(float(loss), end.grad * end.grad.dtype.type(factor))

    def stepped(self) -> None:
        """See `Framework.stepped`: nothing is kept."""

    def gradient(self, parameter: Parameter) -> Array:
        """See `Framework.gradient`."""
        return parameter.settled_grad()

    def take_gradient(self, parameter: Parameter) -> Array | None:
        """See `Framework.take_gradient`."""
        taken = None if parameter.fresh else parameter.grad.copy()
        parameter.renew_grad()
        return taken

    def values(self, parameter: Parameter) -> Array:
        """See `Framework.values`."""
        return parameter.data


class _End:
    """The end of a model, as a network: its backward pass keeps the gradient of the output."""

    grad: Array

    def backward(self, saved: list[Any], grad: Array) -> None:
        """See `Sequential.backward`."""
        self.grad = grad
