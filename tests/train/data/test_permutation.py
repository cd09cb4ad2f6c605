"""The permutation of an epoch: every number once, no memory, and as random as can be told from counts.

Chi-square tests here have fixed keys, so they cannot fail by chance from run to run. Their bound is the value that a
uniform choice exceeds once in a million: sound code would have had to meet a one-in-a-million set of keys.
"""

import math
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.train.data.permutation import LARGEST, Permutation


def exceeds(counts):
    """Whether counts differ from equal ones more than chance would let them once in a million."""
    counts = np.asarray(counts, float)
    expected = counts.mean()
    freedom = counts.size - 1
    # Wilson and Hilferty's approximation; 4.75 is the one-in-a-million quantile of the normal distribution.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.75 * math.sqrt(2 / (9 * freedom))) ** 3
    return ((counts - expected) ** 2 / expected).sum() > bound


def test_the_bound_tells_unequal_counts():
    rng = np.random.default_rng(0)
    assert not exceeds(np.bincount(rng.integers(0, 6, 6000), minlength=6))
    assert exceeds([1200, 960, 960, 960, 960, 960])


@settings(deadline=None)
@given(n=st.integers(1, 5000), key=st.tuples(st.integers(0, 2**64), st.integers(0, 10**6)))
def test_every_number_once(n, key):
    assert np.array_equal(np.sort(Permutation(n, *key)(np.arange(n))), np.arange(n))


@pytest.mark.parametrize("n", [*range(70), 2**16 - 1, 2**16, 2**16 + 1, 10**6])
def test_every_number_once_at_the_edges(n):
    assert np.bincount(Permutation(n, 1)(np.arange(n)), minlength=n).tolist() == [1] * n


@settings(deadline=None)
@given(n=st.integers(1, LARGEST), start=st.floats(0, 1), key=st.integers(0, 99))
def test_ranges_of_any_length_are_distinct_and_in_range(n, start, key):
    first = min(int(start * n), n - 1)
    places = np.arange(first, min(first + 500, n))
    numbers = Permutation(n, key)(places)
    assert len(np.unique(numbers)) == len(places)
    assert 0 <= numbers.min() <= numbers.max() < n


@settings(deadline=None)
@given(n=st.integers(1, 10**12), places=st.lists(st.floats(0, 1), max_size=30))
def test_a_place_has_the_same_number_however_it_is_asked_for(n, places):
    places = np.array([min(int(p * n), n - 1) for p in places], np.int64)
    permutation = Permutation(n, 3, 4)
    assert permutation(places).tolist() == [int(permutation(p)) for p in places.tolist()]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_all_permutations_of_few_numbers_are_as_frequent(n):
    """120 keys a permutation. With ideal rounds, 4 numbers are 0.0003 from uniform, in total variation."""
    keys = 120 * math.factorial(n)
    orders = [tuple(Permutation(n, 5, key)(np.arange(n)).tolist()) for key in range(keys)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == math.factorial(n)
    assert n == 1 or not exceeds(counts)


@pytest.mark.parametrize("n", [5, 8, 11, 16, 17, 33, 100])
def test_first_elements_are_uniform_and_independent_over_epochs(n):
    pairs = np.array([Permutation(n, 9, epoch)(np.arange(2)) for epoch in range(40 * n if n < 50 else 5000)])
    assert not exceeds(np.bincount(pairs[:, 0], minlength=n))
    assert not exceeds(np.bincount((pairs[:, 1] - pairs[:, 0]) % n, minlength=n)[1:])  # the second, given the first
    following = (pairs[1:, 0] - pairs[:-1, 0]) % n
    assert not exceeds(np.bincount(following, minlength=n))


@pytest.mark.parametrize("n", [1000, 1024, 1025, 4097, 10**6, 2**20, 10**9, 2**40 + 3])
def test_neighbours_and_epochs_have_no_fixed_relation(n):
    """Differences of neighbours, and of the numbers of one place in two epochs, in 16 classes of equal width."""
    first, second = (Permutation(n, 0, epoch)(np.arange(min(n, 20_000))) for epoch in (0, 1))
    for difference in (np.diff(first), second - first):
        assert not exceeds(np.bincount(difference % n * 16 // n, minlength=16))


@pytest.mark.parametrize("n", [10**6, 2**20, 2**20 + 1, 10**9, 2**40 + 3])
@pytest.mark.parametrize("step", [1, 2, 8, 32])
def test_any_places_have_uniform_numbers(n, step):
    """Numbers of every step-th place in 64 classes: by size, and by the lowest bits."""
    numbers = Permutation(n, 0)(np.arange(0, 20_000 * step, step))
    assert not exceeds(np.bincount(numbers * 64 // n, minlength=64))
    assert not exceeds(np.bincount(numbers % 64, minlength=64))


@pytest.mark.parametrize("n", [10, 100, 1000, 4096])
def test_fixed_points_are_as_many_as_in_random_permutations(n):
    """Fixed points are Poisson with mean 1, so their sum over 400 keys has mean and variance 400: 5 deviations are 100.
    So are the places in which two permutations agree."""
    places = np.arange(n)
    orders = [Permutation(n, 1, key)(places) for key in range(400)]
    assert abs(sum(int((order == places).sum()) for order in orders) - 400) < 100
    agreeing = sum(int((a == b).sum()) for a, b in zip(orders, orders[1:], strict=False))
    assert abs(agreeing - 399) < 100


def test_keys_differ_in_every_part():
    orders = [
        Permutation(10**6, *key)(np.arange(50)).tolist() for key in [(0, 1), (1, 0), (0, 2), (0,), (0, 1, 0), (10,)]
    ]
    assert len({tuple(order) for order in orders}) == len(orders)


def test_order_stays():
    """Saved positions count on it, for any version of NumPy."""
    assert Permutation(10**9, 1, 2)(np.arange(5)).tolist() == [864049910, 843548904, 198902193, 443638142, 516435924]


def test_bad_arguments():
    for n in (-1, LARGEST + 1):
        with pytest.raises(ValueError, match="0 to 2"):
            Permutation(n)
    for places in ([-1], [10], [0, 10]):
        with pytest.raises(IndexError, match="from 0 to 9"):
            Permutation(10)(places)
    assert Permutation(0)(np.zeros(0, int)).shape == (0,)
    assert Permutation(10)(np.zeros((0, 3), int)).shape == (0, 3)
    assert Permutation(10)(np.zeros((2, 3), int)).shape == (2, 3)


def test_a_billion_takes_no_memory():
    tracemalloc.start()
    try:
        Permutation(10**9, 0)(np.arange(1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.alone
def test_a_million_rows_a_second():
    permutation = Permutation(2**30 + 1, 0)  # the worst case: half of the numbers walk on
    took = []
    for start in range(0, 10**6, 10**5):
        places = np.arange(start, start + 10**5)
        begin = time.perf_counter()
        permutation(places)
        took.append(time.perf_counter() - begin)
    assert 10**5 / min(took) > 1e6
