"""Operands for every datatype and op, and what their reduction over the ranks must be."""

from __future__ import annotations

import numpy as np
from kernel_lib import DTYPES

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
PAIRS = ("float_int", "double_int", "long_int", "two_int", "short_int", "long_double_int")
LOGICAL = ("land", "lor", "lxor")
BITWISE = ("band", "bor", "bxor")
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53, "complex64": 24, "complex128": 53}

OPS: dict[str, tuple[str, ...]] = {
    "bool": ("sum", "prod", "min", "max", *LOGICAL, *BITWISE),
    **dict.fromkeys(INTEGERS, ("sum", "prod", "min", "max", *LOGICAL, *BITWISE)),
    **dict.fromkeys(FLOATS, ("sum", "prod", "min", "max", "avg")),
    **dict.fromkeys(COMPLEX, ("sum", "prod", "avg")),
    **dict.fromkeys(PAIRS, ("minloc", "maxloc")),
}
ALL = [(dtype, op) for dtype, ops in OPS.items() for op in ops]


def operands(dtype: str, op: str, ranks: int, count: int, seed: int = 0) -> list[np.ndarray]:
    """One vector for each rank; products stay in range, pairs have ties."""
    rng = np.random.default_rng([seed, ranks, count])
    return [_operand(rng, dtype, op, rank, count) for rank in range(ranks)]


def _operand(rng: np.random.Generator, dtype: str, op: str, rank: int, count: int) -> np.ndarray:
    kind = DTYPES[dtype]
    if dtype in PAIRS:
        made = np.zeros(count, kind)
        made["value"] = rng.integers(-3, 4, count)
        made["index"] = (7 * rank + rng.integers(0, 3, count)) % 50
        return made
    if dtype == "bool" or op in LOGICAL:
        return rng.integers(0, 2, count).astype(kind)
    if dtype in INTEGERS:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, count, kind, endpoint=True)
    values = rng.standard_normal(count) + (1j * rng.standard_normal(count) if dtype in COMPLEX else 0)
    if op == "prod":
        values = np.sign(values.real) * (1 + (rank < 4) * np.abs(values) / 8) * (1j if dtype in COMPLEX else 1)
    return values.astype(kind)


def _pairs(op: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    better = b["value"] < a["value"] if op == "minloc" else b["value"] > a["value"]
    lower = (b["value"] == a["value"]) & (b["index"] < a["index"])
    return np.where(better | lower, b, a)


_INTEGER_FOLDS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "band": np.bitwise_and,
    "bor": np.bitwise_or, "bxor": np.bitwise_xor, "land": np.logical_and, "lor": np.logical_or,
    "lxor": np.logical_xor,
}  # fmt: skip


def check(dtype: str, op: str, vectors: list[np.ndarray], result: np.ndarray) -> None:
    """Assert that the result is the vectors' reduction: exactly, or for inexact types within the bound of any fold."""
    assert result.dtype == DTYPES[dtype]
    assert result.shape == vectors[0].shape
    if dtype in PAIRS or dtype in INTEGERS or dtype == "bool" or op in ("min", "max"):
        expected = vectors[0]
        for v in vectors[1:]:
            expected = _pairs(op, expected, v) if dtype in PAIRS else _INTEGER_FOLDS[op](expected, v).astype(v.dtype)
        np.testing.assert_array_equal(expected, result)
        return
    wide = [v.astype(np.complex256 if dtype in COMPLEX else np.longdouble) for v in vectors]
    got = result.astype(wide[0].dtype)
    unit = 2.0 ** -DIGITS[dtype] * (4 if dtype in COMPLEX else 1)
    if op == "prod":
        exact = np.prod(wide, axis=0)
        scale = np.abs(exact)
    else:
        parts = len(wide) if op == "avg" else 1
        exact = np.sum(wide, axis=0) / parts
        scale = np.sum(np.abs(wide), axis=0) / parts
    bound = 1.1 * unit * len(wide) * scale
    assert (np.abs(got - exact) <= bound).all(), f"{op} of {dtype}: off by {np.max(np.abs(got - exact) / bound)} bounds"
