"""Chooses the interface for a network: NumPy's or torch's."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ..models.nn import Sequential
from ..tensors import loaded
from . import numpy_model
from .model import Handle, Model


def is_torch(net: Any) -> bool:
    """Whether `net` is a ``torch.nn.Module``. torch is not imported for that."""
    torch = loaded()
    return torch is not None and isinstance(net, torch.nn.Module)


@runtime_checkable
class Adaptable(Protocol):
    """A network that has an interface of its own, as a `Pipeline` does. ``net`` is a network of its parameters.

    ``comm`` has the ranks that have its stages.
    """

    net: Any
    comm: Any

    def adapted(self, opt: Any) -> tuple[Model, Handle]:
        """The interface of this network and its optimizer. TypeError or ValueError as `adapt`."""

    def join(self, mesh: Any) -> None:
        """Take the `Mesh` over which the network is distributed."""

    def arrive(self, wait: bool) -> None:
        """Raise unless the network can be used, on all ranks of the mesh. With `wait`, wait for them. Collective."""


def adapt(net: Any, opt: Any) -> tuple[Model, Handle]:
    """The interface of a network and its optimizer. Raises TypeError or ValueError unless they can be distributed."""
    if isinstance(net, Adaptable):
        return net.adapted(opt)
    if isinstance(net, Sequential):
        model, handle = numpy_model.adapt(net, opt)
        return model, handle
    if is_torch(net):
        from ..torch import adaptor

        return adaptor.adapt(net, opt, devices=True)
    raise TypeError(f"distribute takes a train.Sequential or a torch.nn.Module, not {type(net).__name__}")
