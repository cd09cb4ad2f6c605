"""Networks of action values in NumPy, with dueling heads, and the interface by which they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import train
from .targets import huber

Array = NDArray[Any]


class Dueling(train.Layer):
    """Two streams joined: ``Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)`` (Wang et al. 2016, eq. 9).

    x is (samples, `inputs`): its first half is the last hidden layer of the value's stream, its second half that of the
    advantages'. Each stream ends in a linear layer. So a ``Linear(n, inputs)`` and a ``ReLU`` before this layer are one
    hidden layer for each stream.
    """

    def __init__(self, inputs: int, actions: int, *, rng: np.random.Generator, dtype: Any = np.float32) -> None:
        if inputs < 2 or inputs % 2:
            raise ValueError(f"Dueling: inputs must be even and above 0, not {inputs}")
        if actions < 1:
            raise ValueError(f"Dueling: actions must be at least 1, not {actions}")
        half = inputs // 2
        weights = (rng.standard_normal((actions + 1, half)) / np.sqrt(half)).astype(dtype)
        self.value = train.Parameter(weights[:1].copy())
        self.advantage = train.Parameter(weights[1:].copy())
        self.bias = train.Parameter(np.zeros(actions + 1, dtype))

    def forward(self, x: Array) -> tuple[Array, Array]:
        """See the class."""
        half = self.value.data.shape[1]
        value = x[:, :half] @ self.value.data.T + self.bias.data[:1]
        advantage = x[:, half:] @ self.advantage.data.T + self.bias.data[1:]
        return value + advantage - advantage.mean(axis=1, keepdims=True), x

    def backward_weight(self, saved: Array, grad: Array) -> None:
        """See ``train.Layer``."""
        half = self.value.data.shape[1]
        value, advantage = self._apart(grad)
        self.value.accumulate(np.matmul, value.T, saved[:, :half])
        self.advantage.accumulate(np.matmul, advantage.T, saved[:, half:])
        self.bias.accumulate(np.concatenate, [value.sum(axis=0), advantage.sum(axis=0)])

    def backward_input(self, saved: Array, grad: Array) -> Array:
        """See ``train.Layer``."""
        value, advantage = self._apart(grad)
        return np.concatenate([value @ self.value.data, advantage @ self.advantage.data], axis=1)

    @staticmethod
    def _apart(grad: Array) -> tuple[Array, Array]:
        """The gradients of the value and of the advantages."""
        total = grad.sum(axis=1, keepdims=True)
        return total, grad - total / grad.shape[1]


def perceptron(
    shape: tuple[int, ...], actions: int, *, rng: np.random.Generator, hidden: Sequence[int] = (128, 128),
    dueling: bool = True,
) -> train.Sequential:  # fmt: skip
    """A network for observations of numbers: hidden layers, and an output for each action.

    With `dueling` the last hidden layer is there twice, once for each stream.
    """
    layers: list[train.Layer] = [train.Flatten()]
    inputs = int(np.prod(shape))
    for place, width in enumerate(hidden):
        outputs = 2 * width if dueling and place == len(hidden) - 1 else width
        layers += [train.Linear(inputs, outputs, rng=rng), train.ReLU()]
        inputs = outputs
    last = Dueling(inputs, actions, rng=rng) if dueling else train.Linear(inputs, actions, rng=rng)
    return train.Sequential(*layers, last)


class Scale(train.Layer):
    """Divides pixels of 8 bits by 255."""

    def forward(self, x: Array) -> tuple[Array, None]:
        """See the class."""
        return x / x.dtype.type(255), None

    def backward(self, saved: None, grad: Array, need_input: bool) -> Array:
        """See ``train.Layer``."""
        return grad / grad.dtype.type(255)


#: The convolutions of Mnih et al. 2015, for frames of 84 x 84: channels, side and stride of each.
MNIH_2015 = (32, 8, 4, 64, 4, 2, 64, 3, 1)


class Convolution(NamedTuple):
    """``channels`` filters of ``side`` x ``side`` with a ``stride``, over so many ``inputs``."""

    inputs: int
    channels: int
    side: int
    stride: int


def chained(shape: tuple[int, ...], convolutions: Sequence[int]) -> tuple[list[Convolution], int]:
    """Convolutions one after the other, for stacked frames, and the size of what comes out of the last.

    `convolutions` has three numbers for each: channels, side and stride. ValueError for frames that they do not fit.
    """
    if len(shape) != 3:
        raise ValueError(f"the convolutional network takes frames (frames, h, w), not {shape}")
    channels, size = shape[0], tuple(shape[1:])
    found: list[Convolution] = []
    for place in range(0, len(convolutions), 3):
        found.append(Convolution(channels, *convolutions[place : place + 3]))
        channels, side, stride = found[-1][1:]
        if min(size) < side:
            raise ValueError(f"convolutions {tuple(convolutions)} must fit the frames, which {shape[1:]} do not")
        size = tuple((length - side) // stride + 1 for length in size)
    return found, channels * int(np.prod(size))


def convolutional(
    shape: tuple[int, ...], actions: int, *, rng: np.random.Generator, convolutions: Sequence[int] = MNIH_2015,
    hidden: int = 512, dueling: bool = True, pixels: bool = True,
) -> train.Sequential:  # fmt: skip
    """The network of Mnih et al. 2015 for stacked frames, with dueling heads (Wang et al. 2016).

    See `chained` for the `convolutions`. With `pixels` frames are of 8 bits, and are divided by 255; others are taken
    as they are. ValueError for frames that the convolutions do not fit.
    """
    layers: list[train.Layer] = [Scale()] if pixels else []
    chain, inputs = chained(shape, convolutions)
    for one in chain:
        layers += [train.Conv2d(one.inputs, one.channels, one.side, stride=one.stride, rng=rng), train.ReLU()]
    outputs = 2 * hidden if dueling else hidden
    layers += [train.Flatten(), train.Linear(inputs, outputs, rng=rng), train.ReLU()]
    last = Dueling(outputs, actions, rng=rng) if dueling else train.Linear(outputs, actions, rng=rng)
    return train.Sequential(*layers, last)


Accept = Callable[[float], bool]


def accept_all(loss: float) -> bool:
    """Every loss is fit to be learnt from."""
    return True


class Values(Protocol):
    """A network of action values, NumPy's or torch's. ``net`` is the network, ``size`` the number of parameters."""

    net: Any
    size: int

    def __call__(self, observations: Array) -> Array:
        """The values of all actions: (observations, actions)."""

    def backward(
        self, observations: Array, actions: Array, targets: Array, weights: Array, accept: Accept = accept_all
    ) -> tuple[Array, bool]:
        """Add the gradients of the weighted Huber loss, if ``accept(loss)``.

        Returns the errors ``Q(s, a) - target``, and whether the loss was accepted.
        """

    def flat(self) -> NDArray[np.float32]:
        """A copy of all parameters, as one vector."""

    def put(self, flat: NDArray[np.float32]) -> None:
        """Set all parameters."""

    def clip(self, norm: float) -> None:
        """Scale the gradients down so that their norm is at most `norm`."""


class NumpyValues:
    """`Values` of a ``train.Sequential``."""

    def __init__(self, net: train.Sequential) -> None:
        self.net = net
        self._parameters = net.parameters()
        self.size = sum(p.data.size for p in self._parameters)

    def __call__(self, observations: Array) -> Array:
        """See `Values`."""
        return self.net(observations).data

    def backward(
        self, observations: Array, actions: Array, targets: Array, weights: Array, accept: Accept = accept_all
    ) -> tuple[Array, bool]:
        """See `Values.backward`."""
        output = self.net(observations)
        found = huber(output.data, actions, targets, weights)
        accepted = accept(found.loss)
        if accepted:
            output.backward(found.grad)
        return found.errors, accepted

    def flat(self) -> NDArray[np.float32]:
        """See `Values.flat`."""
        return np.concatenate([p.data.reshape(-1) for p in self._parameters])

    def put(self, flat: NDArray[np.float32]) -> None:
        """See `Values.put`."""
        start = 0
        for p in self._parameters:
            p.data[...] = flat[start : start + p.data.size].reshape(p.data.shape)
            start += p.data.size

    def clip(self, norm: float) -> None:
        """See `Values.clip`."""
        total = float(np.sqrt(sum(float(np.vdot(p.grad, p.grad)) for p in self._parameters)))
        if total > norm:
            for p in self._parameters:
                p.grad *= p.grad.dtype.type(norm / total)
