"""Chooses the interface for a network: NumPy's or torch's."""

from __future__ import annotations

import sys
from typing import Any

from ..models.nn import Array, Sequential
from . import numpy_model
from .model import Handle, Model


def is_torch(net: Any) -> bool:
    """Whether `net` is a ``torch.nn.Module``. torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(net, torch.nn.Module)


def adapt(net: Any, opt: Any) -> tuple[Model, Handle]:
    """The interface of a network and its optimizer. Raises TypeError or ValueError unless they can be distributed."""
    if isinstance(net, Sequential):
        model, handle = numpy_model.adapt(net, opt)
        return model, handle
    if is_torch(net):
        from ..torch import adaptor

        return adaptor.adapt(net, opt)
    raise TypeError(f"distribute takes a train.Sequential or a torch.nn.Module, not {type(net).__name__}")


def parameters(net: Any) -> list[tuple[str, Array]]:
    """Names and values of all parameters of a network as NumPy arrays; bfloat16 comes as ``ml_dtypes.bfloat16``."""
    if is_torch(net):
        from ..torch import tensors

        return [(name, tensors.as_array(p.detach())) for name, p in net.named_parameters()]
    return [(p.name, p.data) for p in net.parameters()]
