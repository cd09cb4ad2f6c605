"""Operands on which implementations of a reduction tend to differ, and the bits that their results must share."""

from __future__ import annotations

import kernel_lib
import ml_dtypes
import numpy as np
from operands import COMPLEX, FLOATS, INTEGERS, PAIRS

HALVES = ("float16", "bfloat16")


def specials(dtype: str) -> np.ndarray:
    """Values on which implementations tend to differ."""
    kind = kernel_lib.DTYPES[dtype]
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        return np.array([0, 1, 2, 3, 101, limits.max, limits.max - 1, limits.min, limits.min + 1], kind)
    if dtype in FLOATS:
        limits = ml_dtypes.finfo(kind)
        tiny = [limits.smallest_subnormal, 3 * limits.smallest_subnormal, limits.tiny]
        values = [0.0, 1.0, 1.5, 3.0, limits.max, np.inf, limits.eps, 1 + limits.eps, *tiny]
        with np.errstate(over="ignore"):
            numbers = np.array([float(v) for v in values]).astype(kind)
        nans = np.array([np.nan], kind).view(f"u{kind.itemsize}")
        nans = np.concatenate([nans, nans | 5]).view(kind)
        return np.concatenate([numbers, -numbers, nans, -nans])
    if dtype in COMPLEX:
        part = specials("float32" if dtype == "complex64" else "float64")
        return (np.array([part, np.roll(part, 5)]).T.copy().view(kind)).ravel()
    values = specials(
        {"float_int": "float32", "double_int": "float64", "long_double_int": "float64"}.get(dtype, "int16")
    )
    pairs = np.zeros(3 * len(values), kind)
    pairs["value"] = np.repeat(values, 3)
    pairs["index"] = np.arange(len(pairs)) % 3 - 1
    return pairs


def operands(dtype: str, n: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """Arrays of n elements: every pair of special values first, then random bits among special values."""
    rng = np.random.default_rng(seed)
    values, kind = specials(dtype), kernel_lib.DTYPES[dtype]
    arrays = []
    for k in range(count):
        turns = np.arange(n) // len(values) ** (k % 3)
        array = values[turns % len(values)]
        if dtype not in ("bool", *PAIRS) and n > 1000:
            bits = rng.bytes((n - 1000) * kind.itemsize)
            array[1000:] = np.frombuffer(bits, kind)
            if dtype in FLOATS and k:
                array[1500:] = rng.normal(1, 1, len(array[1500:])).astype(kind)
        arrays.append(array)
    return arrays


def place(array: np.ndarray, skip: int, unit: int = 64, odd: int = 0) -> np.ndarray:
    """A copy that starts skip elements and some odd bytes after a 64-byte line, or another unit."""
    raw = np.zeros(array.nbytes + 2 * unit + (skip + 1) * array.dtype.itemsize, np.uint8)
    start = -kernel_lib.address(raw) % unit + skip * array.dtype.itemsize + odd
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def bits(array: np.ndarray) -> np.ndarray:
    """What two results must share: all bits, but for padding and the choice between different NaN."""
    if array.dtype.names:
        value = np.ascontiguousarray(array["value"])
        if value.dtype == np.longdouble:
            value = value.astype(np.float64)
        return np.concatenate([bits(value), bits(np.ascontiguousarray(array["index"]))])
    if array.dtype.kind in "fc" and array.dtype != np.float16:
        parts = array.view(array.real.dtype)
        array = np.where(np.isnan(parts), parts.dtype.type(np.nan), parts)
    return array.view(np.uint8)
