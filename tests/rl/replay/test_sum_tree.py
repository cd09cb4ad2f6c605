"""The sum tree against plain arrays."""

import numpy as np
import pytest

from collectives.rl.replay import SumTree


@pytest.mark.parametrize("size", [1, 2, 3, 8, 13, 100])
def test_against_cumulative_sums(size):
    rng = np.random.default_rng(size)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(50):
        indices = rng.integers(size, size=rng.integers(1, 20))
        values = rng.integers(0, 4, len(indices)).astype(float)  # whole numbers: sums are exact
        tree.set(indices, values)
        for i, value in zip(indices, values, strict=True):
            plain[i] = value
        np.testing.assert_array_equal(tree.values(), plain)
        assert tree.total == plain.sum()
        if plain.sum():
            sums = np.arange(0, plain.sum(), 0.5)
            np.testing.assert_array_equal(tree.find(sums), np.searchsorted(plain.cumsum(), sums, side="right"))


def test_what_is_found_is_never_zero():
    rng = np.random.default_rng(1)
    tree = SumTree(1000)
    tree.set(np.arange(0, 1000, 7), rng.random(143) * 10.0 ** rng.integers(-12, 6, 143))
    sums = np.concatenate([rng.random(5000) * tree.total, [0, tree.total, np.nextafter(tree.total, 0)]])
    assert (tree.get(tree.find(sums)) > 0).all()


def test_rounding_errors_do_not_add_up():
    rng = np.random.default_rng(2)
    tree = SumTree(64)
    for _ in range(2000):
        tree.set(rng.integers(64, size=8), 1e12 * rng.random(8))
    tree.set(np.arange(64), np.full(64, 1e-9))
    assert tree.total == pytest.approx(64e-9, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda tree: tree.set([1], [-1.0]), ValueError),
        (lambda tree: tree.set([1], [np.nan]), ValueError),
        (lambda tree: tree.set([4], [1.0]), IndexError),
        (lambda tree: tree.get([-1]), IndexError),
        (lambda tree: tree.find([6.1]), ValueError),
        (lambda tree: tree.find([-0.1]), ValueError),
        (lambda tree: SumTree(4).find([0.0]), ValueError),
        (lambda tree: SumTree(0), ValueError),
    ],
)
def test_bad_input_changes_nothing(call, error):
    tree = SumTree(4)
    tree.set([0, 1, 2], [1.0, 2.0, 3.0])
    with pytest.raises(error):
        call(tree)
    np.testing.assert_array_equal(tree.values(), [1, 2, 3, 0])
