"""Networks on a GPU. Strategies work on copies of parameters and gradients in the computer's memory.

The copies here are blocking: torch's ``copy_`` from a GPU waits for what was queued before it on the current stream,
and the hooks of a backward pass run on the stream that computes the gradient.
"""

from __future__ import annotations

import torch

from ..models.nn import Array
from ..tensors import as_tensor
from .slots import TorchSlot


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of a tensor. All that is decided here by devices asks this function; tests replace it."""
    return tensor.device


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is in the memory of a GPU."""
    return device_of(tensor).type == "cuda"


def check_devices(net: torch.nn.Module, devices: bool) -> None:
    """Raise ValueError unless all tensors of `net` are on the CPU or, with `devices`, all parameters on one GPU.

    Buffers may be elsewhere than the parameters: no strategy sees them.
    """
    parameters = list(net.named_parameters())
    takes = "networks on the CPU or on one CUDA device" if devices else "pipelines on the CPU only"
    for name, tensor in [*parameters, *net.named_buffers()]:
        kind = device_of(tensor).type
        if kind != "cpu" and not (devices and kind == "cuda"):
            raise ValueError(f"{name} is on {device_of(tensor)}; distribute takes {takes}: net.cpu()")
    for name, p in parameters[1:]:
        first, place = parameters[0][0], device_of(parameters[0][1])
        if device_of(p) != place:
            raise ValueError(
                f"{first} is on {place}, {name} on {device_of(p)}; distribute takes {takes}: net.to({str(place)!r})"
            )


class DeviceSlot(TorchSlot):
    """A parameter on a GPU. It stays there, as its gradient does; the pieces of flat arrays are copies of both."""

    on_device = True

    def move(self, data: Array) -> None:
        """Copy the parameter into `data`, of shape (size,), as `fetch` will."""
        self._data = as_tensor(data).view(self.shape)
        self._home = self.parameter.device, self.parameter.dtype
        self._seen: torch.Tensor | None = None  # the gradient that was copied last
        self.fetch()

    def fetch(self) -> None:
        """See `Slot.fetch`."""
        self._data.copy_(self.parameter.detach())

    def deliver(self) -> None:
        """See `Slot.deliver`."""
        self.parameter.detach().copy_(self._data)

    def deliver_grad(self) -> None:
        """See `Slot.deliver_grad`."""
        if self.parameter.grad is None:
            self.parameter.grad = torch.empty_like(self.parameter)
        self.parameter.grad.detach().copy_(self._grad)
        self._note()

    def _note(self) -> None:
        """Remember which gradient, and which state of it, is the one at its place in the flat array."""
        grad = self._seen = self.parameter.grad
        assert grad is not None
        self._version = grad._version

    def _take(self, grad: torch.Tensor) -> None:
        """Copy the gradient `grad`, which stays where it is, to its place."""
        self._grad.copy_(grad.detach())
        self._note()

    def renew(self) -> None:
        """See `Slot.renew`. Nothing here keeps the memory of the last gradient."""
        super().renew()
        self._seen = None

    def put_zeros(self) -> None:
        """See `Slot.put_zeros`."""
        self._grad.zero_()
        self.parameter.grad = torch.zeros_like(self.parameter)
        self._note()

    def touched(self) -> bool:
        """See `Slot.touched`."""
        grad = self.parameter.grad
        if grad is None or grad is not self._seen:
            return True
        return bool(self._version != self.parameter.grad._version)

    def moved(self) -> bool:
        """Whether the device or the type is another one. Other memory on the same device is as good."""
        return (self.parameter.device, self.parameter.dtype) != self._home
