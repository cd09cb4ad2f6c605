"""Data of benchmarks: different on each rank, with exact results that every rank computes without communication.

Element ``i`` of rank ``r`` depends on ``i`` and ``r`` only. Values are integers, so small that no sum over all ranks
overflows or is rounded, in any order: the only correct result of a float is 0 ulps away. (Integers must not wrap around
either, since Open MPI's sums of 8 and 16 bits saturate.) If a type has as many such values as there are ranks, the
values of the ranks differ at every element, so that the first element shows if one rank is left out and another
counted twice. With fewer values, they differ at most elements.
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
    """ValueError unless :func:`operand` knows the type: integers, float16, bfloat16, float32, float64."""
    if dtype.kind not in "iu" and dtype.name not in _DIGITS:
        raise ValueError(f"dtype: {dtype.name} is neither an integer nor one of {', '.join(_DIGITS)}")


def operand(dtype: np.dtype, rank: int, size: int, first: int, last: int, seed: int = 0) -> np.ndarray:
    """Elements ``first`` to ``last - 1`` of the data of ``rank`` among ``size`` ranks; ``seed`` selects other data."""
    spread = np.arange(first, last, dtype=np.uint64)
    spread += np.uint64(seed * 7919 + 1)
    spread *= _SPREAD
    spread ^= spread >> np.uint64(29)
    digits = _digits(dtype)
    summands = min(size, 1 << digits - 1)  # how many ranks may have a value other than 0 at one element
    values = 1 << ((1 << digits) // summands).bit_length() - 1
    middle = 0 if dtype.kind == "u" else values // 2
    around, turn = divmod(rank, values)
    made = spread + np.uint64(turn)
    if around:  # a different shift at every element
        made += (spread ^ np.uint64(around)) * _SPREAD >> np.uint64(40)
    made &= np.uint64(values - 1)  # a power of two
    every = -(-size // summands)
    if every > 1:
        made[(spread + np.uint64(rank)) % np.uint64(every) != 0] = middle
    return (made.astype(np.int64) - middle).astype(dtype)


def _digits(dtype: np.dtype) -> int:
    """Number of bits, without the sign, of the integers that the type represents exactly; at most 60."""
    return min(8 * dtype.itemsize - (dtype.kind == "i"), 60) if dtype.kind in "iu" else _DIGITS[dtype.name]


def fold(op: Fold, operands: Iterable[np.ndarray]) -> np.ndarray:
    """The reduction of the ranks' operands with ``op``, in their type; integers wrap around."""
    return functools.reduce(lambda left, right: op(left, right).astype(left.dtype, copy=False), operands)


def difference(result: np.ndarray, expected: np.ndarray) -> tuple[int, str] | None:
    """The index of the first element that differs, and a text with both values; None if no element differs.

    Integers are compared bit by bit. Floats are compared by distance in ulps; +0 and -0 are equal.
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
    """Distance in ulps between the elements of two float arrays: 0 if equal, 1 for neighbouring floats; uint64."""
    left, right = (_ordered(x) for x in (a, b))
    return np.where(left > right, left - right, right - left)


def _ordered(values: np.ndarray) -> np.ndarray:
    """Integers in the order of the floats: neighbouring floats differ by 1, both zeros are equal."""
    bits = 8 * values.itemsize
    words = values.view(_WORDS[values.itemsize]).astype(np.uint64)
    sign = np.uint64(1 << bits - 1)
    magnitude = words & (sign - np.uint64(1))
    return np.where(words & sign != 0, sign - magnitude, sign + magnitude)
