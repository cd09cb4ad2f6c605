"""Arrays and tensors of any kind as NumPy arrays that can be written, and the names of their types in files."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tensors
from ..tensors import OF_ML_DTYPES, Array, extended_type, is_tensor

#: NumPy's names of types, and safetensors' codes of them. Arrays of other types are stored as plain bytes.
CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_KINDS = "biufcmMSU"  # of NumPy's own types: those whose elements are plain bytes


def type_name(dtype: np.dtype[Any]) -> str:
    """The name of `dtype` in a manifest. TypeError if its elements are not plain bytes: objects, records."""
    if dtype.name in CODES:
        return dtype.name
    if dtype.kind not in _KINDS:
        raise TypeError(f"arrays of {dtype} cannot be saved")
    return dtype.newbyteorder("<").str


def type_of(name: Any) -> np.dtype[Any]:
    """The type of a name that `type_name` gave. ValueError for any other name, or if ml_dtypes is needed and absent."""
    if name in OF_ML_DTYPES:
        return extended_type(name)
    try:
        dtype = np.dtype(name if isinstance(name, str) else "")
    except TypeError:
        raise ValueError(f"{name!r} is no type of elements") from None
    if not isinstance(name, str) or dtype.kind not in _KINDS or type_name(dtype) != name:
        raise ValueError(f"{name!r} is no type of elements")
    return dtype


def is_array(leaf: Any) -> bool:
    """Whether `leaf` is a NumPy array or scalar, or a torch tensor."""
    return isinstance(leaf, np.ndarray | np.generic) or is_tensor(leaf)


def as_numpy(leaf: Any) -> Array:
    """`leaf`, which `is_array`, as a NumPy array: of a tensor in the computer's memory a view, else a copy.

    TypeError for a tensor that is sparse or quantized, or whose type NumPy has not, and for a masked array.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        raise TypeError("a masked array, whose mask would be lost")
    return tensors.as_numpy(leaf) if is_tensor(leaf) else np.asarray(leaf)


def copied(array: Array) -> Array:
    """A copy of `array` in C order and in the byte order of files."""
    return np.array(array, dtype=array.dtype.newbyteorder("<"), order="C", copy=True, subok=False)
