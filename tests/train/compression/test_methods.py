"""What holds for one compression only."""

import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lockstep import exchange, residuals

from collectives import train
from collectives.train.compression import int8, matrices, topk


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# 16 bits on the wire


@pytest.mark.parametrize(("kind", "bits"), [(train.Float16Wire, 11), (train.BFloat16Wire, 8)])
def test_a_mean_in_16_bits_is_rounded_twice(kind, bits):
    g = normal(5, 1000)
    result = exchange([kind() for _ in range(5)], g)
    assert (result == result[0]).all()
    bound = np.abs(g).mean(axis=0) * 2.0**-bits + np.abs(g.mean(axis=0)) * 2.0**-bits
    assert (np.abs(result[0] - g.mean(axis=0)) <= bound * 1.01 + 2.0**-24).all()


def test_beyond_the_range_of_float16_there_is_inf():
    g = np.array([[70000.0, 60000.0, 1.0], [1.0, 60000.0, 1.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = exchange([train.Float16Wire(), train.Float16Wire()], g)
    np.testing.assert_array_equal(result, [[np.inf, 60000, 1]] * 2)  # the sum of the second is beyond it, too
    np.testing.assert_allclose(
        exchange([train.BFloat16Wire(), train.BFloat16Wire()], g), g[None].mean(1).repeat(2, 0), 2**-7
    )


def test_without_ml_dtypes_bfloat16_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError, match="pip install ml_dtypes"):
        train.BFloat16Wire()


# 8 bits


@given(count=st.integers(0, 10**7), size=st.integers(1, 300))
def test_blocks_of_all_ranks_cover_a_vector(count, size):
    blocks, length = int8.layout(count, size)
    assert length % 4 == 0
    assert 4 <= length <= int8.BLOCK
    assert count <= size * blocks * length < count + size * (4 * blocks + 1) + 4 * size


@given(size=st.integers(1, 4), count=st.integers(1, 5000), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_8_bits_are_off_by_a_step_of_their_block(size, count, seed):
    g = normal(size, count, seed=seed)
    result = exchange([train.Int8() for _ in range(size)], g)
    assert np.abs(result[0] - g.mean(axis=0)).max() <= 1.01 * np.abs(g).max() / 127


def test_a_large_element_spoils_its_own_block_only():
    g = np.ones((2, 8 * 1024), np.float32)
    g[0, 0] = 1e6
    off = np.abs(exchange([train.Int8(), train.Int8()], g)[0] - g.mean(axis=0)) > 1e-6
    assert off.any()
    assert not off[1024:].any()


@pytest.mark.parametrize("tiny", [1e-45, 1e-38, 1e-36, 1e-30])
def test_tiny_elements_are_sent_or_kept(tiny):
    g = np.full((2, 10), tiny, np.float32)
    ranks = [train.Int8(), train.Int8()]
    np.testing.assert_allclose(exchange(ranks, g)[0] + residuals(ranks).mean(axis=0), g[0], rtol=1e-5)


def test_a_sum_that_overflows_shows():
    assert np.isnan(exchange([train.Int8(), train.Int8()], np.full((2, 5), 3e38, np.float32))).all()


# The largest


@given(st.integers(1, 60), st.integers(0, 99), st.data())
def test_the_largest_are_taken_and_of_equal_ones_the_first(count, seed, data):
    k = data.draw(st.integers(1, count))
    x = np.random.default_rng(seed).integers(-4, 5, count).astype(np.float32)
    expected = sorted(sorted(range(count), key=lambda i: (-abs(x[i]), i))[:k])
    np.testing.assert_array_equal(topk.largest(x, k, np.empty((2, count), np.float32)), expected)


@given(size=st.integers(1, 4), count=st.integers(1, 500), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_what_a_rank_has_sent_and_its_residual_are_what_it_had_exactly(size, count, seed):
    ranks, g, k = [train.TopK(0.05) for _ in range(size)], normal(size, count, seed=seed), max(1, round(0.05 * count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = exchange(ranks, g)
    kept = residuals(ranks)
    if size * k > count:
        assert not kept.any()
        np.testing.assert_allclose(result[0], g.mean(axis=0), atol=1e-6)
        return
    sent = g - kept  # elements are sent or kept, whole
    assert ((kept == 0) | (kept == g)).all()
    assert ((sent != 0).sum(axis=1) == k).all()
    total = np.zeros(count, np.float32)
    for row in sent:
        total += row
    np.testing.assert_array_equal(result, np.tile(total / np.float32(size), (size, 1)))


def test_rank_0_warns_once_where_an_all_reduce_is_shorter():
    g = normal(4, 100)
    ranks = [train.TopK(0.26) for _ in range(4)]
    with pytest.warns(UserWarning, match=r"TopK\(0.26\) would move more .* 26 of 100 elements from each of 4 ranks"):
        result = exchange(ranks, g)
    np.testing.assert_allclose(result[0], g.mean(axis=0), atol=1e-6)
    assert not residuals(ranks).any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exchange(ranks, g)
        exchange([train.TopK(0.25) for _ in range(4)], g)  # as short as an all-reduce
    assert ranks[0].sent == 2 * 400


@pytest.mark.parametrize("density", [0, -1, 1.01, float("nan")])
def test_densities_out_of_range(density):
    with pytest.raises(ValueError, match="density must be above 0 and at most 1"):
        train.TopK(density)


# Low rank


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("true_rank", [0, 1, 2, 3])
def test_a_mean_of_that_rank_comes_out_whole(true_rank, dtype):
    """Rank 3, or deficient. The ranks' own gradients have more; only their mean must not."""
    left, right = normal(40, true_rank, dtype=dtype), normal(true_rank, 30, seed=1, dtype=dtype)
    noise = normal(40 * 30, seed=2, dtype=dtype)
    g = np.stack([(left @ right).ravel()] * 2)
    ranks = [train.PowerSGD(3), train.PowerSGD(3)]
    for _ in range(3):  # again with a warm start, and after a direction was drawn anew
        result = exchange(ranks, g, [(40, 30)])
        np.testing.assert_allclose(result[0], g[0], atol=200 * np.finfo(dtype).eps)
        assert np.abs(residuals(ranks)).max() <= 200 * np.finfo(dtype).eps
    ranks = [train.PowerSGD(3), train.PowerSGD(3)]
    result = exchange(ranks, g + np.stack([noise, -noise]), [(40, 30)])
    np.testing.assert_allclose(result[0], g[0], atol=1000 * np.finfo(dtype).eps)


@pytest.mark.parametrize("shape", [(12, 8), (8, 12), (1, 7), (7, 1), (6, 2, 3)])
def test_nothing_is_lost_at_full_rank(shape):
    g = normal(3, int(np.prod(shape)))
    ranks = [train.PowerSGD(12) for _ in range(3)]
    np.testing.assert_allclose(exchange(ranks, g, [shape])[0], g.mean(axis=0), atol=1e-6)
    assert not residuals(ranks).any()


def test_a_direction_that_was_missing_is_found_later():
    """With rank 2: a gradient of 0, of rank 1, of 0, and then one of rank 2 in other directions."""
    a, b, c = normal(3, 40, 1)
    d, e, f = normal(3, 1, 30, seed=1)
    ranks = [train.PowerSGD(2)]
    zero = np.zeros((40, 30), np.float32)
    for g in (zero, a @ d, zero, b @ e + c @ f):
        result = exchange(ranks, g.reshape(1, -1), [(40, 30)])
        np.testing.assert_allclose(result[0], g.ravel(), atol=1e-4)


def test_the_warm_start_finds_the_best_approximation():
    """Subspace iteration: without error feedback the error of a constant gradient falls to that of the SVD."""
    u, _, v = np.linalg.svd(normal(50, 40, dtype=np.float64), full_matrices=False)
    m = (u * 0.6 ** np.arange(40)) @ v
    ranks, errors = [train.PowerSGD(2)], []
    for _ in range(15):
        errors.append(np.linalg.norm(exchange(ranks, m.reshape(1, -1), [(50, 40)])[0] - m.ravel()))
        state = ranks[0].state_dict()
        state["0"]["residual"][:] = 0
        ranks[0].load_state_dict(state)
    best = np.linalg.norm(0.6 ** np.arange(2, 40))
    assert errors[0] > 1.1 * best
    assert errors[-1] == pytest.approx(best, rel=1e-4)


def test_residuals_stay_bounded():
    """Error feedback on a constant gradient of rank 30, of which a step sends 2 directions."""
    g, ranks, norms = normal(1, 1200), [train.PowerSGD(2)], []
    for _ in range(80):
        exchange(ranks, g, [(40, 30)])
        norms.append(np.linalg.norm(residuals(ranks)))
    assert max(norms[40:]) < 1.2 * max(norms[:40]) < 20 * np.linalg.norm(g)


def test_the_first_steps_may_be_dense():
    g, ranks = normal(2, 1200), [train.PowerSGD(1, start_after=2), train.PowerSGD(1, start_after=2)]
    off = [np.abs(exchange(ranks, g, [(40, 30)])[0] - g.mean(axis=0)).max() for _ in range(3)]
    assert max(off[:2]) < 1e-6 < 0.1 < off[2]
    assert ranks[0].sent == 2 * 4800 + 70 * 4


def test_vectors_and_small_matrices_are_exact():
    shapes = [(30, 20), (30,), (2, 3), (4, 1)]
    g = normal(3, 600 + 30 + 6 + 4)
    result = exchange([train.PowerSGD(2) for _ in range(3)], g, shapes)[0]
    np.testing.assert_allclose(result[600:], g.mean(axis=0)[600:], atol=1e-6)
    assert np.abs(result[:600] - g.mean(axis=0)[:600]).max() > 0.1


@given(r=st.integers(1, 6), m=st.integers(1, 40), seed=st.integers(0, 99), spread=st.integers(0, 12))
def test_rows_become_orthonormal_whatever_their_condition(r, m, seed, spread):
    rows = normal(r, m, seed=seed, dtype=np.float64)
    rows[1:] = rows[0] + 10.0**-spread * rows[1:]
    given_rows = rows.copy()
    matrices.orthonormal(rows)
    gram = rows @ rows.T
    kept = np.diag(gram) > 0.5
    np.testing.assert_allclose(gram, np.diag(kept.astype(float)), atol=1e-12)
    back = given_rows @ rows.T @ rows
    np.testing.assert_allclose(back, given_rows, atol=1e-12 * np.abs(given_rows).max() * m)


@given(r=st.integers(1, 5), m=st.integers(1, 70), n=st.integers(1, 70))
def test_products_in_tiles_are_products(r, m, n):
    p, q, out = normal(r, m, dtype=np.float64), normal(r, n, seed=1, dtype=np.float64), np.empty((m, n))
    whole, matrices.TILE = matrices.TILE, 100
    try:
        matrices.product(p, q, out)
    finally:
        matrices.TILE = whole
    np.testing.assert_allclose(out, p.T @ q, atol=1e-12)


@pytest.mark.parametrize("kwargs", [{"rank": 0}, {"start_after": -1}, {"seed": -1}])
def test_settings_out_of_range(kwargs):
    with pytest.raises(ValueError, match=f"{next(iter(kwargs))} must be at least"):
        train.PowerSGD(**kwargs)
