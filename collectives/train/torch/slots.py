"""`Slot` for the parameters of torch's networks in the computer's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..flat.model import Slot
from ..models.nn import Array
from ..tensors import as_tensor, extended_type


class TorchSlot(Slot):
    """A parameter of a module as a piece of flat arrays.

    autograd makes a new tensor for the gradient if there is none, and this tensor is copied to its place. That is less
    work than to fill the place with zeros and to let autograd add to it.
    """

    def __init__(self, name: str, parameter: torch.nn.Parameter, order: int, group: int) -> None:
        super().__init__(name, tuple(parameter.shape), numpy_dtype(parameter.dtype), order, group)
        self.parameter = parameter

    def move(self, data: Array) -> None:
        """See `Slot.move`."""
        view = as_tensor(data).view(self.shape)
        view.copy_(self.parameter.detach())
        self.parameter.data = view
        self._address = view.data_ptr()

    def bind(self, grad: Array) -> None:
        """See `Slot.bind`."""
        self._grad = as_tensor(grad).view(self.shape)
        self._version = self._grad._version

    def collect(self) -> str | None:
        """See `Slot.collect`."""
        grad = self.parameter.grad
        if grad is None:  # a stage without samples, or a branch that was not taken
            self.put_zeros()
        elif grad.layout is not torch.strided:
            return f"{self.name} has a sparse gradient; use sparse=False"
        else:
            self._take(grad)
        return None

    def _take(self, grad: torch.Tensor) -> None:
        """Copy the gradient `grad` to its place, and keep it there."""
        if grad is not self._grad:
            self._grad.copy_(grad)
            self.parameter.grad = self._grad
        self._version = self._grad._version

    def put_zeros(self) -> None:
        """See `Slot.put_zeros`."""
        self.parameter.grad = self._grad.zero_()
        self._version = self._grad._version

    def renew(self) -> None:
        """See `Slot.renew`."""
        self.parameter.grad = None

    def release(self) -> None:
        """See `Slot.release`."""
        self.renew()

    def touched(self) -> bool:
        """See `Slot.touched`. torch counts its changes of a tensor; those of strategies, by NumPy, it does not see."""
        return self.parameter.grad is not self._grad or self._grad._version != self._version

    def moved(self) -> bool:
        """See `Slot.moved`."""
        return self.parameter.data_ptr() != self._address


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The element type in NumPy; bfloat16 is that of ml_dtypes. Raises TypeError for complex and other types."""
    if dtype is torch.bfloat16:
        return extended_type("bfloat16")
    known = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}
    if dtype not in known:
        raise TypeError(f"{dtype} has no gradient that can be averaged; there are float16, bfloat16, float32, float64")
    return np.dtype(known[dtype])
