"""Tensors and NumPy arrays that share memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..models.nn import Array


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The element type in NumPy; bfloat16 is that of ml_dtypes. Raises TypeError for complex and other types."""
    if dtype is torch.bfloat16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    known = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}
    if dtype not in known:
        raise TypeError(f"{dtype} has no gradient that can be averaged; there are float16, bfloat16, float32, float64")
    return np.dtype(known[dtype])


def as_tensor(array: Array) -> torch.Tensor:
    """A tensor on the memory of `array`, of the same shape; ``ml_dtypes.bfloat16`` becomes ``torch.bfloat16``."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def as_array(tensor: torch.Tensor) -> Array:
    """An array on the memory of `tensor`, of the same shape; ``torch.bfloat16`` becomes ``ml_dtypes.bfloat16``."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(numpy_dtype(tensor.dtype))
    return tensor.numpy()


def as_bytes(tensor: torch.Tensor) -> Array:
    """A copy of the elements of `tensor`, of any type and layout in memory, as bytes of shape (n,)."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)


def put_bytes(tensor: torch.Tensor, data: Array) -> None:
    """Put bytes that `as_bytes` made of a tensor of the same shape and type into `tensor`."""
    if tensor.numel():
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(data).view(tensor.dtype).view(tensor.shape))
