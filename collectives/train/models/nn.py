"""Parameters, layers in sequence, and a backward pass that calls hooks as soon as a gradient is complete.

The interface is PyTorch's (``net(x)``, ``parameters()``, ``.data``, ``.grad``, ``loss.backward()``, ``state_dict()``).
The implementation is plain NumPy, without autograd: each layer has code for its derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives import span

from ..loading import check_array, check_mapping

Array = NDArray[Any]


class Parameter:
    """A trainable array ``data``, its gradient ``grad`` (of the same shape and dtype), and its ``name``, which the
    network sets."""

    def __init__(self, data: Array, name: str = "") -> None:
        self.data = data
        self.grad: Array = np.zeros_like(data)
        self.name = name
        self._fresh = True
        self._hooks: list[Callable[[Parameter], None]] = []

    def __repr__(self) -> str:
        return f"Parameter({self.name or 'unnamed'}, {self.data.shape}, {self.data.dtype})"

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles get: hooks are not among it, for they act on this parameter's gradient."""
        return {**vars(self), "_hooks": []}

    def register_post_accumulate_grad_hook(self, hook: Callable[[Parameter], None]) -> None:
        """Call ``hook(self)`` each time a backward pass has completed this gradient, as in PyTorch."""
        self._hooks.append(hook)

    def zero_grad(self) -> None:
        """Set ``grad`` to zero."""
        if self.grad.flags.writeable:
            self.grad.fill(0)
        self._fresh = True

    def renew_grad(self) -> None:
        """Let the next backward pass write ``grad`` rather than add to it."""
        self._fresh = True

    def bind_grad(self, view: Array) -> None:
        """Make ``grad`` the array `view` (a piece of a bucket), with the values that it has now."""
        view[...] = self.grad
        self.grad = view

    def release_grad(self) -> None:
        """Give back the memory of ``grad``, which then is a read-only array of zeros without memory of its own.

        The next backward pass makes a new array.
        """
        self.grad = np.broadcast_to(np.zeros((), self.data.dtype), self.data.shape)
        self._fresh = True

    @property
    def fresh(self) -> bool:
        """Whether no backward pass has added to ``grad`` since `zero_grad` or `renew_grad`."""
        return self._fresh

    def settled_grad(self) -> Array:
        """``grad``, to be changed in place: zeros if it is `fresh`. Later backward passes add to it."""
        if self._fresh and not self.grad.flags.writeable:
            self.grad = np.zeros_like(self.data)
        elif self._fresh:
            self.grad.fill(0)
        self._fresh = False
        return self.grad

    def accumulate(self, function: Callable[..., Array], *args: Any, **kwargs: Any) -> None:
        """``grad += function(*args, **kwargs)``. The first time after ``zero_grad`` this needs no temporary array."""
        if not self._fresh:
            self.grad += function(*args, **kwargs)
        elif self.grad.flags.writeable:
            function(*args, **kwargs, out=self.grad)
        else:
            self.grad = function(*args, **kwargs)
        self._fresh = False

    def ready(self) -> None:
        """Call the hooks: this backward pass adds nothing more to ``grad``."""
        for hook in self._hooks:
            hook(self)


class Layer:
    """A function with a derivative.

    `forward` returns the result, and the data that `backward` needs. The layer itself keeps nothing, so a network may
    be evaluated between a forward pass and its backward pass.
    """

    def parameters(self) -> dict[str, Parameter]:
        """The layer's own parameters by name, in a fixed order."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Parameter)}

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the layer's result for `x` and what `backward` needs."""
        raise NotImplementedError

    def backward(self, saved: Any, grad: Array, need_input: bool) -> Array | None:
        """Add to the parameters' gradients. Returns the gradient of the input, or None if `need_input` is False.

        A layer with parameters overrides this method, or both of `backward_weight` and `backward_input`. A layer with
        several inputs, which a `Graph` may have, returns a tuple of their gradients.
        """
        self.backward_weight(saved, grad)
        return self.backward_input(saved, grad) if need_input else None

    def backward_input(self, saved: Any, grad: Array) -> Array:
        """Return the gradient of the input, and leave those of the parameters alone."""
        if self.parameters():
            raise NotImplementedError(f"{type(self).__name__} has no backward_input()")
        below = self.backward(saved, grad, True)
        assert below is not None
        return below

    def backward_weight(self, saved: Any, grad: Array) -> None:
        """Add to the parameters' gradients only. A pipeline may do so later than `backward_input`, see ZeroBubble."""
        if self.parameters():
            raise NotImplementedError(f"{type(self).__name__} has no backward_weight()")

    def flops(self, output: Array) -> float:
        """Floating-point operations of the forward pass that made `output`: by default, one for each element."""
        return float(output.size)

    def generators(self) -> list[np.random.Generator]:
        """The random generators that `forward` draws from."""
        return []


class Output:
    """The result of ``net(x)``: the array ``data``, and what the layers saved for the backward pass."""

    def __init__(self, net: Sequential, data: Array, saved: list[Any]) -> None:
        self.net = net
        self.data = data
        self._saved: list[Any] | None = saved

    def __len__(self) -> int:
        return len(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of ``data``: (samples, ...)."""
        return self.data.shape

    def backward(self, grad: Array) -> None:
        """Run the backward pass, last layer first. `grad` is the gradient of the loss with respect to ``data``.

        `grad` has the shape of ``data``, else ValueError. RuntimeError if called twice: the data that the layers saved
        are freed by the first call.
        """
        if grad.shape != self.data.shape:
            raise ValueError(f"backward got a gradient of shape {grad.shape} for an output of shape {self.data.shape}")
        if self._saved is None:
            raise RuntimeError("backward() was called twice on the same output; call the network again first")
        saved, self._saved = self._saved, None
        self.net.backward(saved, grad)


class Sequential:
    """Layers, one after the other. Parameters are named ``<index of the layer>.<name>`` as in PyTorch.

    ``samples`` is the number of samples of the last backward pass; strategies weight this rank's gradient with it.
    Raises ValueError if no layer has parameters, or if two have the same one.
    """

    def __init__(self, *layers: Layer) -> None:
        self.layers = layers
        self.samples = 0
        self._parameters: list[Parameter] = []
        for i, layer in enumerate(layers):
            for name, parameter in layer.parameters().items():
                if any(parameter is other for other in self._parameters):
                    raise ValueError(f"{i}.{name} is also {parameter.name}: layers cannot share parameters")
                parameter.name = f"{i}.{name}"
                self._parameters.append(parameter)
        with_parameters = [i for i, layer in enumerate(layers) if layer.parameters()]
        if not with_parameters:
            raise ValueError("a network needs at least one layer with parameters")
        self._first = with_parameters[0]
        self._ended: list[Callable[[Sequential], None]] = []
        self._loaded: list[Callable[[Sequential], None]] = []
        self.dtype = self._parameters[0].data.dtype

    def parameters(self) -> list[Parameter]:
        """All parameters, first layer first."""
        return list(self._parameters)

    def train(self, mode: bool = True) -> Sequential:
        """Let layers that differ in training and evaluation, such as `Dropout`, work for training. Returns itself."""
        for layer in self.layers:
            if hasattr(layer, "training"):
                layer.training = mode
        return self

    def eval(self) -> Sequential:
        """The same for evaluation."""
        return self.train(False)

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles get: hooks are not among it, as in `Parameter`."""
        return {**vars(self), "_ended": [], "_loaded": []}

    def register_backward_end_hook(self, hook: Callable[[Sequential], None]) -> None:
        """Call ``hook(self)`` at the end of each backward pass."""
        self._ended.append(hook)

    def register_load_state_dict_post_hook(self, hook: Callable[[Sequential], None]) -> None:
        """Call ``hook(self)`` after each `load_state_dict`."""
        self._loaded.append(hook)

    def __call__(self, x: Any) -> Output:
        """Run the layers on `x`, of shape (samples, ...). The number of samples may be 0."""
        x = np.asarray(x, dtype=self.dtype)
        saved: list[Any] = []
        with span("forward"):
            for layer in self.layers:
                x, kept = layer.forward(x)
                saved.append(kept)
        return Output(self, x, saved)

    def backward(self, saved: list[Any], grad: Array) -> None:
        """Run the backward pass for `Output.backward`, down to the first layer that has parameters."""
        self.samples = len(grad)
        below: Array | None = grad
        for i in range(len(self.layers) - 1, self._first - 1, -1):
            layer = self.layers[i]
            assert below is not None
            below = layer.backward(saved[i], below, i > self._first)
            saved[i] = None
            for parameter in reversed(layer.parameters().values()):
                parameter.ready()
        for hook in self._ended:
            hook(self)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameters by name."""
        return {p.name: p.data.copy() for p in self._parameters}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Copy parameters from `state`, in place. If that raises an error, nothing has changed.

        TypeError for what is no mapping, ValueError if names or shapes differ.
        """
        check_mapping("Sequential", state)
        mine, theirs = {p.name for p in self._parameters}, set(state)
        if mine != theirs:
            raise ValueError(f"parameters missing: {sorted(mine - theirs)}; unexpected: {sorted(theirs - mine)}")
        for p in self._parameters:
            check_array(f"parameter {p.name}", state[p.name], p.data.shape)
        for p in self._parameters:
            p.data[...] = state[p.name]
        for hook in self._loaded:
            hook(self)
