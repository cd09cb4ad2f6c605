"""The C reduction kernels against NumPy, on every instruction set that this processor has."""

from __future__ import annotations

import ctypes
import functools
import itertools
import time

import kernel_lib
import numpy as np
import pytest
from kernel_operands import HALVES, bits, operands, place
from operands import ALL as CASES
from operands import BITWISE, COMPLEX, FLOATS, LOGICAL
from operands import OPS as VALID

pytestmark = pytest.mark.skipif(kernel_lib.compiler() is None, reason="needs a C compiler")

PAGE = 4096
LENGTHS = (0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 1000, 4099)
CANONICAL_NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0}


@pytest.fixture(autouse=True)
def best_isa(kernels):
    """Leave the best instruction set selected after every test."""
    yield
    kernels.select(kernels.isas()[-1])


def combine(dtype: str, op: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """What x op y is, in the accumulators' type."""
    if dtype == "bool":
        names = {"sum": "or", "max": "or", "prod": "and", "min": "and"}
        name = names.get(op) or op.removeprefix("l").removeprefix("b")
        return getattr(np, f"logical_{name}")(x, y)
    if op in LOGICAL:
        return getattr(np, f"logical_{op[1:]}")(x, y).astype(x.dtype)
    if op in BITWISE:
        return getattr(np, f"bitwise_{op[1:]}")(x, y)
    if op in ("minloc", "maxloc"):
        a, b = x["value"], y["value"]
        better = b < a if op == "minloc" else b > a
        even = (a == b) | ((a != a) & (b != b))
        right = better | ((b != b) & (a == a)) | (even & (y["index"] < x["index"]))
        return np.where(right, y, x)
    if op in ("min", "max"):
        return np.where(y != y, y, np.where(y < x if op == "min" else y > x, y, x))
    if op in ("sum", "avg"):
        return x + y
    if dtype not in COMPLEX:
        return x * y
    product = np.empty_like(x)
    product.real = x.real * y.real - x.imag * y.imag
    product.imag = x.real * y.imag + x.imag * y.real
    return product


def expect(dtype: str, op: str, sources: list[np.ndarray], divide: bool = True) -> np.ndarray:
    """The fold of the sources from the left."""
    kind = kernel_lib.DTYPES[dtype]
    if len(sources) == 1:
        return sources[0]
    wide = [source.astype(np.float32) if dtype in HALVES else source for source in sources]
    with np.errstate(all="ignore"):
        total = functools.reduce(functools.partial(combine, dtype, op), wide)
        if op == "avg" and divide and dtype in COMPLEX:
            total.real, total.imag = total.real / len(sources), total.imag / len(sources)
        elif op == "avg" and divide:
            total = total / total.dtype.type(len(sources))
        result = total.astype(kind)
    if dtype in HALVES:
        result.view(np.uint16)[np.isnan(total)] = CANONICAL_NAN[dtype]
    return result


def check(got: np.ndarray, want: np.ndarray, what) -> None:
    """Compare a result with what it should be."""
    assert np.array_equal(bits(got), bits(want)), what


def test_types_and_ops(kernels):
    """Names, sizes and their order."""
    assert kernels.dtypes == [*kernel_lib.DTYPES, "exact32", "exact64"]
    assert set(kernels.ops) == {op for ops in VALID.values() for op in ops} | {"reproducible_sum"}
    for t, dtype in enumerate(kernel_lib.DTYPES.values()):
        assert kernels.lib.coll_dtype_size(t) == dtype.itemsize
    for outside in (-1, len(kernels.dtypes)):
        assert kernels.lib.coll_dtype_name(outside) is None
        assert kernels.lib.coll_dtype_size(outside) == 0
        assert not kernels.lib.coll_reduce2(outside, 0)
        assert not kernels.lib.coll_scale(outside)
    for outside in (-1, len(kernels.ops)):
        assert kernels.lib.coll_op_name(outside) is None
        assert not kernels.lib.coll_reducep(0, outside)


def test_only_valid_combinations(kernels):
    """NULL where the op does not apply to the type, on every instruction set."""
    for isa in kernels.isas():
        kernels.select(isa)
        for t, dtype in enumerate(kernels.dtypes):
            valid = VALID.get(dtype, ())
            for op in kernels.ops:
                for kind in ("reduce2", "reducep", "reduce2_stream", "reducep_stream"):
                    able = op in valid
                    if op == "reproducible_sum":  # the terms themselves must all meet, their accumulators need not
                        able = dtype in ("exact32", "exact64") or (dtype in ("float32", "float64") and "p" in kind[6:7])
                    assert bool(kernels.find(kind, dtype, op)) == able, (isa, dtype, op)
            assert bool(kernels.lib.coll_scale(t)) == ("avg" in valid)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_two_operands(kernels, dtype, op):
    """Every length, starts at any address, targets that are sources; the instruction sets agree to the bit."""
    for n in LENGTHS:
        a, b = operands(dtype, n, 2, seed=n)
        want = expect(dtype, op, [a, b], divide=False)
        results = []
        for isa in kernels.isas():
            kernels.select(isa)
            for skip, odd in ((0, 0), (1, 0), (3, 0), (0, 1), (1, 8)):
                left, right, dst = place(a, skip), place(b, skip // 2, odd=odd), place(a[::-1], skip, odd=odd)
                kernels.reduce2(dtype, op, dst, left, right)
                check(dst, want, (isa, n, skip, odd))
                results.append(bits(dst))
                kernels.reduce2(dtype, op, left, left, right)
                results.append(bits(left))
                left = place(a, 0)
                kernels.reduce2(dtype, op, right, left, right)
                results.append(bits(right))
        assert all(np.array_equal(results[0], result) for result in results), n


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_many_operands(kernels, dtype, op):
    """p sources to q targets, the last of which is a source."""
    for p in (*range(1, 10), 16, 33):
        for q, n in ((1, 0), (1, 1), (2, 31), (3, 4099), (4, 2600)):
            sources = operands(dtype, n, p, seed=p)
            want = expect(dtype, op, sources)
            results = []
            for isa in kernels.isas():
                kernels.select(isa)
                placed = [place(source, k % 3, odd=n % 5) for k, source in enumerate(sources)]
                targets = [place(sources[0], j, odd=n % 5) for j in range(q - 1)] + [placed[-1]]
                kernels.reducep(dtype, op, targets, placed)
                check(targets[0], want, (isa, p, q, n))
                results += map(bits, targets)
            assert all(np.array_equal(results[0], result) for result in results), (p, q, n)


@pytest.mark.parametrize("dtype", [dtype for dtype in VALID if "avg" in VALID[dtype]])
def test_scale(kernels, dtype):
    """Division by p, in place too."""
    for p in (1, 2, 3, 7, 1000):
        for n in (0, 1, 33, 4099):
            (a,) = operands(dtype, n, 1, seed=p)
            wide = a.astype(np.float32) if dtype in HALVES else a
            parts = wide.view(wide.real.dtype)
            with np.errstate(all="ignore"):
                want = (parts / parts.dtype.type(p)).view(wide.dtype).astype(a.dtype)
            if dtype in HALVES:
                want.view(np.uint16)[np.isnan(wide)] = CANONICAL_NAN[dtype]
            results = []
            for isa in kernels.isas():
                kernels.select(isa)
                dst, src = place(a[::-1], 1), place(a, 2)
                kernels.scale(dtype, dst, src, p)
                check(dst, want, (isa, p, n))
                kernels.scale(dtype, src, src, p)
                results += [bits(dst), bits(src)]
            assert all(np.array_equal(results[0], result) for result in results), (p, n)


@pytest.mark.parametrize("dtype", ["bool", "int16", "float16", "float32", "complex128", "double_int"])
def test_streams(kernels, dtype):
    """Stores past the cache change no bit and touch nothing else, whatever the targets' places."""
    op, n = VALID[dtype][0], 70001
    for p, skips in ((2, [0]), (2, [3]), (3, [1, 1]), (3, [0, 1]), (8, [5]), (9, [0])):
        sources = operands(dtype, n, p, seed=p)
        want = expect(dtype, op, sources)
        for isa in kernels.isas():
            kernels.select(isa)
            around = [place(np.zeros(n + 2, want.dtype), skip) for skip in skips]
            targets = [array[1:-1] for array in around]
            kernels.reducep(dtype, op, targets, sources, stream=True)
            for target, whole in zip(targets, around, strict=True):
                check(target, want, (isa, p, skips))
                assert not whole[[0, -1]].view(np.uint8).any()
            placed = [place(source, 0) for source in sources]
            kernels.reducep(dtype, op, placed[-1:], placed, stream=True)
            check(placed[-1], want, (isa, p, "in place"))
            if p == 2:
                targets[0][:] = sources[0]
                kernels.reduce2(dtype, op, targets[0], *sources, stream=True)
                check(targets[0], want, (isa, "reduce2"))


def copy(kernels, how, target, source):
    addresses = (ctypes.c_void_p(kernel_lib.address(a)) for a in (target, source))
    getattr(kernels.lib, how)(*addresses, ctypes.c_size_t(target.nbytes))


@pytest.mark.parametrize("how", ["coll_copy", "coll_copy_stream"])
def test_copies(kernels, how):
    """From a page's beginning to places before and behind it, in either direction."""
    source = place(np.random.default_rng(1).integers(0, 256, 9000, np.uint8), 0, PAGE)
    for isa in kernels.isas():
        kernels.select(isa)
        lengths = (0, 1, 62, 63, 64, 65, 200, 2047, 2048, 2049, 4096, 4900, 8999)
        for skip, length in itertools.product((0, 1, 31, 32, 63, 2047, 2048, 4095), lengths):
            around = place(np.zeros(13200, np.uint8), 0, PAGE)
            target = around[skip : skip + length]
            copy(kernels, how, target, source[:length])
            assert (target == source[:length]).all(), (isa, skip, length)
            assert not np.delete(around, slice(skip, skip + length)).any()


def test_copies_are_as_fast_wherever_they_begin(kernels):
    """A few bytes behind the source's place in its page, the C library may take twenty times as long."""
    source, around = (place(np.ones(70000, np.uint8), 0, PAGE) for _ in range(2))
    times = {skip: [] for skip in (0, 1, 8, 16, 64)}
    for _ in range(20):
        for skip, measured in times.items():
            began = time.perf_counter()
            for _ in range(20):
                copy(kernels, "coll_copy", around[skip : skip + 65536], source[:65536])
            measured.append(time.perf_counter() - began)
    slowest = max(min(measured) for measured in times.values())
    assert slowest < 3 * min(times[0]), times


def test_stream_threshold(kernels):
    """The setter returns the former value, and calls above it give the same result."""
    former = kernels.lib.coll_stream_bytes(1)
    try:
        a, b = operands("float32", 20000, 2)
        dst = np.empty_like(a)
        kernels.reduce2("float32", "sum", dst, a, b)
        check(dst, expect("float32", "sum", [a, b]), "above")
        assert kernels.lib.coll_stream_bytes(former) == 1
    finally:
        kernels.lib.coll_stream_bytes(former)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half(kernels, dtype):
    """All 65536 values against a shuffled copy of themselves."""
    kind = kernel_lib.DTYPES[dtype]
    a = np.arange(65536, dtype=np.uint16).view(kind)
    b = np.random.default_rng(3).permutation(65536).astype(np.uint16).view(kind)
    for isa in kernels.isas():
        kernels.select(isa)
        for op in ("sum", "prod", "min", "max"):
            for right in (a, b):
                dst = np.empty_like(a)
                kernels.reduce2(dtype, op, dst, a, right)
                check(dst, expect(dtype, op, [a, right]), (isa, op))


def test_halves_round_once(kernels):
    """2048 + 1 + 1 is 2050 in float16 only when nothing is rounded on the way."""
    sources = [np.full(40, value, np.float16) for value in (2048, 1, 1)]
    dst = np.empty_like(sources[0])
    for isa in kernels.isas():
        kernels.select(isa)
        kernels.reducep("float16", "sum", [dst], sources)
        assert (dst == 2050).all()
        kernels.reducep("float16", "avg", [dst], [np.full(40, 60000, np.float16)] * 3)
        assert (dst == 60000).all()


def test_bools_of_any_byte(kernels):
    """Bytes other than 0 and 1 count as true, and results are 0 or 1."""
    a = np.arange(256, dtype=np.uint8)
    left, right = a.view(bool), np.roll(a, 7).view(bool)
    for isa in kernels.isas():
        kernels.select(isa)
        for op in VALID["bool"]:
            dst = np.empty(256, bool)
            kernels.reduce2("bool", op, dst, left, right)
            want = combine("bool", op, left.view(np.uint8) != 0, right.view(np.uint8) != 0)
            assert np.array_equal(dst.view(np.uint8), want.view(np.uint8)), (isa, op)


def test_signed_zeros(kernels):
    """Of -0 and +0 min and max keep the left one, on every instruction set."""
    a, b = np.array([0.0, -0.0] * 20), np.array([-0.0, 0.0] * 20)
    for dtype in FLOATS:
        left, right = (x.astype(kernel_lib.DTYPES[dtype]) for x in (a, b))
        for isa in kernels.isas():
            kernels.select(isa)
            for op in ("min", "max"):
                dst = np.empty_like(left)
                kernels.reduce2(dtype, op, dst, left, right)
                assert np.array_equal(bits(dst), bits(left)), (dtype, isa, op)
