"""The layers: Linear, Conv2d, MaxPool2d, ReLU, Flatten, Dropout, Add. Images have PyTorch's shape.

That is (samples, channels, h, w).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import DTypeLike

from ..counts import count, real
from ..random_streams import Random
from .nn import Array, Layer, Parameter


def _he(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int, dtype: DTypeLike) -> Parameter:
    """Normal weights of variance 2 / fan_in, which keep the variance through ReLU layers (He et al. 2015, sec. 2.2)."""
    return Parameter((rng.standard_normal(shape) * np.sqrt(2.0 / fan_in)).astype(dtype))


def _positive(layer: str, **sizes: int) -> None:
    for name, value in sizes.items():
        count(f"{layer}: {name}", value)


def _rows(grad: Array) -> Array:
    """A gradient of shape (n, c, h, w) as (n * h * w, c)."""
    return grad.transpose(0, 2, 3, 1).reshape(-1, grad.shape[1])


class Linear(Layer):
    """``y = x W^T + b`` with x (samples, inputs), W (outputs, inputs), b (outputs,).

    W is drawn from `rng` (He et al. 2015, sec. 2.2), b is 0. Raises ValueError for sizes below 1.
    """

    def __init__(self, inputs: int, outputs: int, *, rng: np.random.Generator, dtype: DTypeLike = np.float32) -> None:
        _positive("Linear", inputs=inputs, outputs=outputs)
        self.weight = _he(rng, (outputs, inputs), inputs, dtype)
        self.bias = Parameter(np.zeros(outputs, dtype))

    def forward(self, x: Array) -> tuple[Array, Array]:
        """See the class."""
        outputs, inputs = self.weight.data.shape
        if x.ndim != 2 or x.shape[1] != inputs:
            raise ValueError(f"Linear({inputs}, {outputs}) takes (samples, {inputs}), got {x.shape}")
        return x @ self.weight.data.T + self.bias.data, x

    def backward_weight(self, saved: Array, grad: Array) -> None:
        """See `Layer.backward_weight`."""
        self.weight.accumulate(np.matmul, grad.T, saved)
        self.bias.accumulate(np.sum, grad, axis=0)

    def backward_input(self, saved: Array, grad: Array) -> Array:
        """See `Layer.backward_input`."""
        return grad @ self.weight.data

    def flops(self, output: Array) -> float:
        """See `Layer.flops`."""
        return 2.0 * len(output) * self.weight.data.size


class Conv2d(Layer):
    """2-D cross-correlation, as one matrix product over all windows (im2col: Chellapilla et al. 2006, sec. 3).

    x (samples, inputs, h, w), weight (outputs, inputs, kernel, kernel), bias (outputs,). The result has the shape
    (samples, outputs, h', w') with h' = (h + 2 padding - kernel) // stride + 1, and w' likewise. The weight is drawn
    from `rng` (He et al. 2015, sec. 2.2), the bias is 0. Raises ValueError for sizes below 1 and a padding below 0.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        rng: np.random.Generator,
        dtype: DTypeLike = np.float32,
    ) -> None:
        _positive("Conv2d", inputs=inputs, outputs=outputs, kernel=kernel, stride=stride, padding=padding + 1)
        self.stride, self.padding = stride, padding
        self.weight = _he(rng, (outputs, inputs, kernel, kernel), inputs * kernel * kernel, dtype)
        self.bias = Parameter(np.zeros(outputs, dtype))

    def forward(self, x: Array) -> tuple[Array, Any]:
        """See the class."""
        outputs, inputs, k, _ = self.weight.data.shape
        s, p = self.stride, self.padding
        if x.ndim != 4 or x.shape[1] != inputs or min(x.shape[2:]) + 2 * p < k:
            raise ValueError(
                f"Conv2d({inputs}, {outputs}, {k}) takes (samples, {inputs}, h, w), h, w >= {k - 2 * p}; got {x.shape}"
            )
        padded = np.pad(x, ((0, 0), (0, 0), (p, p), (p, p))) if p else x
        windows = sliding_window_view(padded, (k, k), axis=(2, 3))[:, :, ::s, ::s]  # (n, c, oh, ow, k, k)
        n, c, oh, ow = windows.shape[:4]
        columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * oh * ow, c * k * k)
        y = columns @ self.weight.data.reshape(outputs, c * k * k).T + self.bias.data
        return y.reshape(n, oh, ow, outputs).transpose(0, 3, 1, 2), (columns, padded.shape)

    def backward_weight(self, saved: Any, grad: Array) -> None:
        """See `Layer.backward_weight`."""
        columns, _ = saved
        rows = _rows(grad)
        self.weight.accumulate(self._weight_gradient, rows, columns)
        self.bias.accumulate(np.sum, rows, axis=0)

    def backward_input(self, saved: Any, grad: Array) -> Array:
        """See `Layer.backward_input`."""
        _, padded_shape = saved
        outputs, c, k, _ = self.weight.data.shape
        n, _, oh, ow = grad.shape
        rows = _rows(grad)
        windows = (rows @ self.weight.data.reshape(outputs, c * k * k)).reshape(n, oh, ow, c, k, k)
        s, p = self.stride, self.padding
        below = np.zeros(padded_shape, grad.dtype)
        for i in range(k):
            for j in range(k):
                below[:, :, i : i + s * oh : s, j : j + s * ow : s] += windows[..., i, j].transpose(0, 3, 1, 2)
        return below[:, :, p : padded_shape[2] - p, p : padded_shape[3] - p]

    def flops(self, output: Array) -> float:
        """See `Layer.flops`."""
        n, _, oh, ow = output.shape
        return 2.0 * n * oh * ow * self.weight.data.size

    def _weight_gradient(self, rows: Array, columns: Array, out: Array | None = None) -> Array:
        """``rows^T columns`` in the weight's shape, written directly into `out` if it is given."""
        flat = None if out is None else out.reshape(len(out), -1)
        return np.matmul(rows.T, columns, out=flat).reshape(self.weight.data.shape)


class MaxPool2d(Layer):
    """The largest value of each ``size`` x ``size`` tile (default 2) of x (samples, channels, h, w).

    Rows and columns that do not fill a tile are dropped. Among equal values of a tile, the first one, row by row, gets
    the gradient. Raises ValueError for a size below 1.
    """

    def __init__(self, size: int = 2) -> None:
        _positive("MaxPool2d", size=size)
        self.size = size

    def forward(self, x: Array) -> tuple[Array, Any]:
        """See the class."""
        k = self.size
        if x.ndim != 4 or min(x.shape[2:]) < k:
            raise ValueError(f"MaxPool2d({k}) takes (samples, channels, h, w) with h, w >= {k}, got {x.shape}")
        n, c, oh, ow = x.shape[0], x.shape[1], x.shape[2] // k, x.shape[3] // k
        tiles = x[:, :, : oh * k, : ow * k].reshape(n, c, oh, k, ow, k).transpose(0, 1, 2, 4, 3, 5)
        tiles = tiles.reshape(n, c, oh, ow, k * k)
        where = tiles.argmax(axis=-1)[..., None]
        return np.take_along_axis(tiles, where, axis=-1)[..., 0], (where, x.shape)

    def backward(self, saved: Any, grad: Array, need_input: bool) -> Array:
        """See `Layer.backward`."""
        where, shape = saved
        k = self.size
        n, c, oh, ow = grad.shape
        tiles = np.zeros((n, c, oh, ow, k * k), grad.dtype)
        np.put_along_axis(tiles, where, grad[..., None], axis=-1)
        below = np.zeros(shape, grad.dtype)
        spread = tiles.reshape(n, c, oh, ow, k, k).transpose(0, 1, 2, 4, 3, 5)
        below[:, :, : oh * k, : ow * k] = spread.reshape(n, c, oh * k, ow * k)
        return below


class ReLU(Layer):
    """``max(x, 0)``, elementwise. The derivative at 0 is defined as 0."""

    def forward(self, x: Array) -> tuple[Array, Array]:
        """See the class."""
        y = np.maximum(x, 0)
        return y, y

    def backward(self, saved: Array, grad: Array, need_input: bool) -> Array:
        """See `Layer.backward`."""
        return grad * (saved > 0)


class Flatten(Layer):
    """Reshapes (samples, a, b, ...) to (samples, a * b * ...)."""

    def forward(self, x: Array) -> tuple[Array, tuple[int, ...]]:
        """See the class."""
        return x.reshape(len(x), int(np.prod(x.shape[1:]))), x.shape

    def backward(self, saved: tuple[int, ...], grad: Array, need_input: bool) -> Array:
        """See `Layer.backward`."""
        return grad.reshape(saved)


class Dropout(Layer):
    """Sets each element to 0 with probability `p`, and divides the others by ``1 - p`` (Srivastava et al. 2014).

    The elements are drawn from `random`, in order: one forward pass of a batch draws the same as passes of its
    micro-batches one after the other. While ``training`` is False the layer changes nothing; see ``Sequential.eval``.
    On a `Mesh`, activations that are the same on the tensor ranks need ``train.Random(seed, purpose, mesh=mesh)``: with
    other masks on each, their weights drift apart. Raises ValueError unless 0 <= p < 1.
    """

    def __init__(self, p: float, *, random: Random) -> None:
        if not 0 <= real("Dropout: p", p) < 1:
            raise ValueError(f"Dropout: p must be in [0, 1), not {p}")
        self.p, self.random, self.training = p, random, True

    def forward(self, x: Array) -> tuple[Array, Any]:
        """See the class."""
        if not self.training:
            return x, None
        kept = self.random.generator.random(x.shape) >= self.p
        factor = kept.astype(x.dtype) / x.dtype.type(1 - self.p)
        return x * factor, factor

    def backward(self, saved: Any, grad: Array, need_input: bool) -> Array:
        """See `Layer.backward`."""
        return grad if saved is None else grad * saved

    def generators(self) -> list[np.random.Generator]:
        """See `Layer.generators`."""
        return [self.random.generator]


class Add(Layer):
    """The sum of several inputs of one shape, for a `Graph`: a skip connection, for example."""

    def forward(self, *inputs: Array) -> tuple[Array, int]:
        """See the class. Raises ValueError for inputs of different shapes."""
        if len({x.shape for x in inputs}) > 1:
            raise ValueError(f"Add takes inputs of one shape, got {', '.join(str(x.shape) for x in inputs)}")
        return np.sum(inputs, axis=0), len(inputs)

    def backward(self, saved: int, grad: Array, need_input: bool) -> Any:
        """See `Layer.backward`."""
        return (grad,) * saved
