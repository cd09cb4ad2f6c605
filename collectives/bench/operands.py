"""Data of benchmarks: each rank's own, with results that every rank can tell without communication, to the bit.

Element ``i`` of rank ``r`` follows from ``i`` and ``r`` alone. Values are whole numbers, so small that no sum over all
ranks overflows or is rounded, in any order: the only right result of a float is 0 ulps away. (Integers must not wrap
around either: Open MPI's sums of 8 and 16 bits stop at the largest number.) Where a type has as many such values as
there are ranks, the ranks' values differ at every element, so that a rank that is dropped while another is counted
twice shows in the first; elsewhere they differ at most elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import numpy as np

__all__ = ["Fold", "check_dtype", "difference", "fold", "operand"]

Fold = Callable[..., np.ndarray]  # np.add, np.maximum or np.minimum

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def check_dtype(dtype: np.dtype) -> None:
    """ValueError unless there are operands of the type: integers, and floats that :func:`operand` knows."""
    if dtype.kind not in "iu" and dtype.name not in _DIGITS:
        raise ValueError(f"dtype: {dtype.name} is neither an integer nor one of {', '.join(_DIGITS)}")


def operand(dtype: np.dtype, rank: int, size: int, first: int, last: int, seed: int = 0) -> np.ndarray:
    """Elements ``first`` to ``last`` (left out) of what a rank of ``size`` contributes; ``seed`` gives other data."""
    spread = np.arange(first, last, dtype=np.uint64)
    spread += np.uint64(seed * 7919 + 1)
    spread *= _SPREAD
    spread ^= spread >> np.uint64(29)
    digits = _digits(dtype)
    summands = min(size, 1 << digits - 1)  # so many may be other than 0 at one element
    values = 1 << ((1 << digits) // summands).bit_length() - 1
    middle = 0 if dtype.kind == "u" else values // 2
    around, turn = divmod(rank, values)
    made = spread + np.uint64(turn)
    if around:  # by another amount at every element
        made += (spread ^ np.uint64(around)) * _SPREAD >> np.uint64(40)
    made &= np.uint64(values - 1)  # a power of two
    every = -(-size // summands)
    if every > 1:
        made[(spread + np.uint64(rank)) % np.uint64(every) != 0] = middle
    return (made.astype(np.int64) - middle).astype(dtype)


def _digits(dtype: np.dtype) -> int:
    """Bits of the whole numbers that a type has exactly, without the sign; 60 are enough."""
    return min(8 * dtype.itemsize - (dtype.kind == "i"), 60) if dtype.kind in "iu" else _DIGITS[dtype.name]


def fold(op: Fold, operands: Iterable[np.ndarray]) -> np.ndarray:
    """The reduction of the ranks' operands, in the type of the operands; integers wrap around."""
    return functools.reduce(lambda left, right: op(left, right).astype(left.dtype, copy=False), operands)


def difference(result: np.ndarray, expected: np.ndarray) -> tuple[int, str] | None:
    """The first element that is not the expected one, and both in words; None where there is none.

    Integers are compared bit by bit, floats by their distance in ulps, in which +0 and -0 are one number.
    """
    words = f"i{result.itemsize}"
    if np.array_equal(result.view(words), expected.view(words)):
        return None
    if result.dtype.kind in "iu":
        at = int(np.argmax(result != expected))
        return at, f"{result[at]}, expected {expected[at]}"
    distance = ulps(result, expected)
    at = int(np.argmax(distance != 0))
    if distance[at] == 0:
        return None
    return at, f"{result[at]}, expected {expected[at]}: {distance[at]} ulp away"


def ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many representable numbers lie between elements of two float arrays, plus one where they differ: uint64."""
    left, right = (_ordered(x) for x in (a, b))
    return np.where(left > right, left - right, right - left)


def _ordered(values: np.ndarray) -> np.ndarray:
    """Integers in the order of floats, one apart where the floats are neighbours, and the same for both zeros."""
    bits = 8 * values.itemsize
    words = values.view(_WORDS[values.itemsize]).astype(np.uint64)
    sign = np.uint64(1 << bits - 1)
    magnitude = words & (sign - np.uint64(1))
    return np.where(words & sign != 0, sign - magnitude, sign + magnitude)
