"""Softmax cross-entropy, the loss of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives import span

from .nn import Array, Output


class Loss:
    """The value of a loss, ``float(loss)`` or ``loss.item()``: the mean over ``samples`` samples of this rank."""

    def __init__(self, value: float, output: Output, grad: Array) -> None:
        self.value = value
        self.samples = len(grad)
        self._output = output
        self._grad = grad

    def __float__(self) -> float:
        return self.value

    def item(self) -> float:
        """The value as a plain float."""
        return self.value

    def __repr__(self) -> str:
        return f"Loss({self.value:.6g}, samples={self.samples})"

    def __mul__(self, factor: float) -> Loss:
        """The loss times a number, with its gradient. Mixed precision scales losses, so that small gradients keep their
        bits."""
        return Loss(self.value * factor, self._output, self._grad * self._grad.dtype.type(factor))

    __rmul__ = __mul__

    def backward(self) -> None:
        """Add the gradient of this mean to every parameter's ``grad``, last layer first. Raises RuntimeError if called
        twice."""
        with span("backward"):
            self._output.backward(self._grad)


class CrossEntropyLoss:
    """Softmax cross-entropy: ``CrossEntropyLoss()(output, labels)`` is the mean of ``-log softmax(output)[label]``.

    output: (samples, classes); labels: integers in [0, classes), (samples,). The mean is over this rank's samples. It
    is 0 if the rank has none in a step. Raises ValueError for other shapes or labels.
    """

    def __call__(self, output: Output, labels: Any) -> Loss:
        """Return the mean loss of this rank's samples."""
        logits, y = output.data, np.asarray(labels)
        if logits.ndim != 2 or y.shape != logits.shape[:1] or y.dtype.kind not in "iu":
            raise ValueError(
                f"CrossEntropyLoss takes outputs (samples, classes) and integer labels (samples,), got {logits.shape} "
                f"and {y.dtype} {y.shape}"
            )
        n, classes = logits.shape
        if n == 0:
            return Loss(0.0, output, np.zeros_like(logits))
        if y.min() < 0 or y.max() >= classes:
            raise ValueError(f"labels run from {y.min()} to {y.max()}, but the network has {classes} outputs")
        rows = np.arange(n)
        shifted = logits - logits.max(axis=1, keepdims=True)  # so that exp cannot overflow
        exp = np.exp(shifted)
        total = exp.sum(axis=1, keepdims=True)
        value = float(np.mean(np.log(total[:, 0]) - shifted[rows, y], dtype=np.float64))
        grad = exp / total
        grad[rows, y] -= 1
        grad /= n
        return Loss(value, output, grad)
