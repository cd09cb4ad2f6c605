"""torch's tensors as NumPy arrays, and back. torch is not imported here: who has a tensor has imported it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # types of torch that NumPy has from ml_dtypes


def loaded() -> Any:
    """The module torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def is_tensor(thing: Any) -> bool:
    """Whether `thing` is a torch tensor."""
    torch = loaded()
    return torch is not None and isinstance(thing, torch.Tensor)


def extended_type(name: str) -> np.dtype[Any]:
    """The type of ml_dtypes of this name, one of OF_ML_DTYPES. ValueError if ml_dtypes is not installed."""
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError(f"arrays of {name} need ml_dtypes, which is not installed: pip install ml_dtypes") from None
    return np.dtype(getattr(ml_dtypes, name))


def as_numpy(tensor: Any) -> Array:
    """`tensor` as an array of the same shape: of one in the computer's memory a view, else a copy.

    TypeError for a tensor that is sparse or quantized, or whose type NumPy has not.
    """
    tensor = tensor.detach()
    try:
        found: Array = tensor.numpy()
        return found
    except (TypeError, RuntimeError):  # what numpy() refuses
        return _converted(tensor)


def _converted(tensor: Any) -> Array:
    """`as_numpy` of a tensor that torch itself does not show as an array."""
    torch = loaded()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError("sparse and quantized tensors have no array")
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in OF_ML_DTYPES:
        words = torch.int16 if tensor.element_size() == 2 else torch.uint8
        made: Array = tensor.view(words).numpy().view(extended_type(name))
        return made
    made = tensor.numpy()
    return made


def as_tensor(array: Array) -> Any:
    """A tensor on the memory of `array`, of the same shape. The program must have imported torch."""
    torch = loaded()
    if array.dtype.isbuiltin == 2:  # a type of ml_dtypes; asking for its name takes long
        words = np.dtype(np.int16 if array.dtype.itemsize == 2 else np.uint8)
        return torch.from_numpy(array.view(words)).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def as_bytes(tensor: Any) -> Array:
    """The elements of `tensor`, of any type, in order, as bytes of shape (n,): a view where that is possible."""
    torch = loaded()
    plain = tensor.detach().cpu().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # a single element counts as contiguous whatever its stride is
    made: Array = flat.view(torch.uint8).numpy()
    return made
