"""Exact sums: kernels and accumulators against exact arithmetic, on every instruction set, by every algorithm."""

import copy
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from calls import interleave, program

import collectives
from collectives.core import _core
from collectives.schedules import registry

TYPES = ("float32", "float64")
ISAS = [isa for isa in ("baseline", "avx2", "avx512") if _core.isa_supported(isa)]
OP = _core.OPS.index("reproducible_sum")
INF, NAN = math.inf, math.nan
ALLREDUCE = [registry.find("allreduce", name) for name in registry.algorithms("allreduce")]
ALLREDUCE = [a for a in ALLREDUCE if isinstance(a, registry.ScheduleAlgorithm)]


@pytest.fixture(autouse=True)
def best_isa():
    """Leave the best instruction set selected after every test."""
    best = _core.isa()
    yield
    _core.select_isa(best)


def code(dtype):
    return _core.DTYPES.index(np.dtype(dtype).name)


def total(x):
    return collectives.reproducible_sum(x)


def exact_sum(terms):
    """As a fraction. Of integers, for a fraction is reduced after every addition."""
    ratios = map(float.as_integer_ratio, terms.tolist())  # denominators are powers of 2, up to 2**1074
    return Fraction(sum(n << (1075 - d.bit_length()) for n, d in ratios), 1 << 1074)


def nearest(exact, dtype):
    """The float nearest to a fraction, of two as near the even one."""
    if not exact:
        return 0.0
    digits, tiny = (24, -149) if dtype == "float32" else (53, -1074)
    scale = max(math.frexp(float(abs(exact)))[1] - digits, tiny) if abs(exact) < 2**1023 else 1024 - digits
    unit = Fraction(2) ** scale
    return float(round(exact / unit) * unit)  # round takes the even one; the product is exact


def spread(rng, n, dtype, decades):
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-decades, decades, n)).astype(dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_are_exact(isa, dtype):
    """All lengths around those of vectors and tiles; wide and narrow ranges; cancellation down to one last term."""
    _core.select_isa(isa)
    rng = np.random.default_rng(1)
    for n in (0, 1, 2, 7, 15, 16, 17, 100, 1023, 1024, 1025, 1040, 2500):
        for decades in (0, 3, 15, 30 if dtype == "float32" else 290):
            x = spread(rng, n, dtype, decades)
            for terms in (x, np.concatenate([x, -x[::-1], np.array([3e-39], dtype)])):
                assert total(terms) == nearest(exact_sum(terms), dtype), (n, decades)
        tiny = (rng.integers(-9, 10, n) * np.finfo(dtype).smallest_subnormal).astype(dtype)
        assert total(tiny) == math.fsum(tiny.tolist())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_special_values(isa, dtype):
    _core.select_isa(isa)
    top = float(np.finfo(dtype).max)
    half = 2.0 ** (103 if dtype == "float32" else 970)  # of the last place of top
    for terms, want in (
        ([], 0.0), ([-0.0], -0.0), ([-0.0] * 3, -0.0), ([-0.0] * 2000, -0.0), ([-0.0, 0.0], 0.0), ([1.0, -1.0], 0.0),
        ([top, top], INF), ([-top, -top], -INF), ([top] * 2000 + [-top] * 1999, top), ([top, half], INF),
        ([top, half, -half / 2], top), ([INF, 1.0], INF), ([-INF] * 2000, -INF), ([INF, -INF], NAN), ([NAN, 1.0], NAN),
        ([1.0] * 2000 + [NAN], NAN), ([NAN, INF], NAN), ([0.0] * 2000 + [INF], INF), ([top, top, -INF], -INF),
    ):  # fmt: skip
        for order in (terms, terms[::-1]):
            got = np.asarray(total(np.array(order, dtype)))
            assert got.tobytes() == np.array(want, dtype).tobytes(), (terms[:3], want, got)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_sources_round_once(isa, dtype):
    """The fold of p operands, the sum of as many terms and the fold of accumulators agree to the bit."""
    _core.select_isa(isa)
    rng = np.random.default_rng(2)
    for p in (1, 2, 3, 5, 16):
        for n in (1, 7, 8, 9, 1024, 1030, 2100):
            xs = [spread(rng, n, dtype, decades) for decades in rng.choice([0, 8, 35], p)]
            for x in xs:
                x[:: rng.integers(3, 40)] = rng.choice([0.0, -0.0, INF, -INF, NAN, 3e38, -3e38, 1e-40])
            accumulators = [collectives.Accumulator(n, dtype).add(x[:, None], axis=1) for x in xs]
            want = collectives.Accumulator(n, dtype).add(np.array(xs), axis=0).value()
            results = np.zeros(n, dtype), np.zeros(n, dtype)
            _core.reducep(code(dtype), OP, [r.view("u1") for r in results], [x.view("u1") for x in xs])
            assert results[0].tobytes() == results[1].tobytes() == want.tobytes()
            folded = accumulators[0]
            for other in accumulators[1:]:
                _core.reduce2(_core.wider(code(dtype)), OP, folded.data, other.data, folded.data)
            assert folded.value().tobytes() == want.tobytes()
            _core.reducep(code(dtype), OP, [xs[-1].view("u1")], [x.view("u1") for x in xs])  # a target is a source
            assert xs[-1].tobytes() == want.tobytes()


def test_axes_and_shapes():
    x = np.random.default_rng(3).standard_normal((40, 7, 3))
    for axis in (None, 0, -1, (0, 2), (2, 0), (0, 1, 2)):
        got = collectives.reproducible_sum(x, axis)
        np.testing.assert_allclose(got, x.sum(axis), rtol=1e-12, atol=1e-13)
        assert np.shape(got) == x.sum(axis).shape
    assert type(collectives.reproducible_sum(x.astype("f4"))) is np.float32
    assert collectives.reproducible_sum(x[:0], 0).tolist() == np.zeros((7, 3)).tolist()
    assert collectives.reproducible_sum(x[:, :0], 0).shape == (0, 3)
    assert collectives.reproducible_sum(x.T[::-2, ::3]) == math.fsum(x.T[::-2, ::3].ravel())
    sums = collectives.Accumulator((7, 3))
    for part in (x[:13], x[13:14], x[14:14], x[14:]):
        sums.add(part, axis=0)
    assert sums.value().tobytes() == collectives.reproducible_sum(x[::-1], 0).tobytes()
    with pytest.raises(TypeError, match="float32 or float64, not int64"):
        collectives.reproducible_sum(np.arange(3))
    with pytest.raises(TypeError, match="expected float64, not float32"):
        sums.add(x.astype("f4"), 0)
    with pytest.raises(ValueError, match="shape"):
        sums.add(x, 1)
    with pytest.raises(np.exceptions.AxisError):
        collectives.reproducible_sum(x, 3)


def ill_conditioned(rng, n, dtype):
    """Terms of which all but small ones cancel, in random order."""
    x = spread(rng, n * 3 // 8, dtype, 15)
    return rng.permutation(np.concatenate([x, -x, spread(rng, n - 2 * len(x), dtype, 4) * dtype(1e-8)]))


def distributions(rng, n, p):
    """Which terms each rank has: runs of equal length, turn by turn, of random length, and all on the last."""
    yield [np.arange(n)[n * r // p : n * (r + 1) // p] for r in range(p)]
    yield [np.arange(r, n, p) for r in range(p)]
    yield np.split(rng.permutation(n), np.sort(rng.integers(0, n + 1, p - 1)))
    yield [np.arange(n if r == p - 1 else 0) for r in range(p)]


def allreduced(algorithm, accumulators, chance):
    """The accumulators of all ranks after an all-reduce of them in process."""
    size = len(accumulators)
    group = _core.InProcess(size, chance.randrange(1, 1000))
    kind = _core.wider(code(accumulators[0].dtype))
    plans = [
        _core.Plan(program(algorithm, r, size, True), group.endpoint(r), 1, _core.itemsize(kind), kind, OP)
        for r in range(size)
    ]
    for plan, a in zip(plans, accumulators, strict=True):
        plan.start(_core.address(a.data), _core.address(a.data), 0)
    interleave(plans, chance)
    return accumulators


@pytest.mark.quick("float64-some")
@pytest.mark.parametrize(("dtype", "numbers"), [*((dtype, "some") for dtype in TYPES), ("float64", "all")])
def test_a_million_terms_anywhere_in_any_order(dtype, numbers):
    """The same bits on 1 to 16 ranks, by every algorithm, in every distribution, shuffled: those of the exact sum."""
    rng, chance, n = np.random.default_rng(4), random.Random(4), 1_000_000
    x = ill_conditioned(rng, n, np.dtype(dtype).type)
    want = np.asarray(nearest(exact_sum(x), dtype), dtype).tobytes()
    plain = {np.asarray(np.sum(rng.permutation(x))).tobytes() for _ in range(5)}
    assert len(plain) > 1, "too easy: plain sums agree"
    for p in range(1, 17) if numbers == "all" else (1, 2, 3, 7, 16):
        for i, parts in enumerate(distributions(rng, n, p)):
            sums = [collectives.Accumulator((), dtype).add(x[rng.permutation(part)]) for part in parts]
            for algorithm in ALLREDUCE if i == 0 else [ALLREDUCE[(p + i) % len(ALLREDUCE)]]:
                for a in allreduced(algorithm, copy.deepcopy(sums), chance):
                    assert a.value().tobytes() == want, (p, i, algorithm.name)
