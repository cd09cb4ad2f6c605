"""Peer arithmetic, on ints and on arrays."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.schedules import patterns

SIZES = st.integers(1, 5000)


@given(SIZES)
def test_powers_of_two(p):
    low = patterns.floor_power_of_two(p)
    assert low <= p < 2 * low
    assert 2 ** patterns.ceil_log2(p) >= p
    assert p == 1 or 2 ** (patterns.ceil_log2(p) - 1) < p
    assert patterns.doublings(p) == [2**k for k in range(20) if 2**k < p]


@given(SIZES)
def test_factors_multiply_to_the_size(p):
    found = patterns.factors(p)
    assert math.prod(found) == p
    assert found == sorted(found, reverse=True)
    assert all(factor > 1 for factor in found)


@given(SIZES)
def test_largest_smooth_is_the_nearest_one_below(p):
    smooth = patterns.largest_smooth(p)
    assert p / 2 < smooth <= p
    assert max(patterns.factors(smooth), default=1) <= 7
    assert all(max(patterns.factors(m)) > 7 for m in range(smooth + 1, p + 1))


@given(SIZES, st.data())
def test_survivors_are_the_odd_ones_of_the_pairs_and_the_rest(p, data):
    target = data.draw(st.integers((p + 1) // 2, p))
    stay = patterns.survivors(p, target).tolist()
    assert len(stay) == target
    assert stay == sorted(stay)
    for leaver in set(range(p)) - set(stay):
        assert leaver % 2 == 0
        assert leaver + 1 in stay


@given(SIZES, st.data())
def test_shares_cut_the_blocks_among_the_survivors(p, data):
    target = data.draw(st.integers((p + 1) // 2, p))
    stay = patterns.survivors(p, target)
    first, count = patterns.shares(p, target, np.arange(target), 1)
    assert first[0] == 0
    assert np.array_equal(first[1:], (first + count)[:-1])
    assert (first + count)[-1] == p
    assert np.array_equal(first + count - 1, stay)
    assert set(count.tolist()) <= {1, 2}


@given(st.integers(0, 12))
def test_bit_reversal_is_its_own_inverse(k):
    ranks = np.arange(2**k)
    turned = patterns.bit_reversed(ranks, 2**k)
    assert sorted(turned) == list(ranks)
    assert np.array_equal(patterns.bit_reversed(turned, 2**k), ranks)


@given(SIZES)
def test_circulant_skips_cover_all_blocks(p):
    skips = list(patterns.circulant_skips(p))
    assert len(skips) == patterns.ceil_log2(p)
    assert sum(blocks for _, blocks in skips) == p - 1
    assert all(0 < blocks <= skip for skip, blocks in skips)


@given(st.integers(1, 600))
def test_in_order_tree_is_one_tree_in_order(p):
    ranks = np.arange(p)
    tree = patterns.in_order_tree(ranks, p)
    left, right = tree.children
    for parent, child in [(a, b) for side in (left, right) for a, b in zip(ranks, side, strict=True) if b >= 0]:
        assert tree.parent[child] == parent
        assert tree.level[child] < tree.level[parent]
    assert np.count_nonzero(left >= 0) + np.count_nonzero(right >= 0) == p - 1

    def walk(position):
        if position < 0:
            return []
        return [*walk(left[position]), position, *walk(right[position])]

    assert walk(0) == list(ranks)


@pytest.mark.parametrize("p", range(4, 65))
def test_second_tree_has_other_interior_ranks(p):
    """The point of the double tree: mirrored (even p) or shifted by one (odd p), leaves and interiors swap."""
    left, right = patterns.in_order_tree(np.arange(p), p).children
    interior = set(np.flatnonzero((left >= 0) | (right >= 0)).tolist()) - {0}
    second = {p - 1 - r for r in interior} if p % 2 == 0 else {(r + 1) % p for r in interior}
    assert not interior & second


@given(st.integers(1, 600))
def test_arrays_and_ints_agree(p):
    ranks = np.arange(p)
    for part in (lambda r: patterns.ring(r, p)[0], lambda r: patterns.in_order_tree(r, p).parent):
        assert part(ranks).tolist() == [int(part(int(r))) for r in ranks]


def test_numbers_of_ranks_as_large_as_any_take_no_time():
    """Between 2^24 - 107416 and 2^24 there is no number without a prime factor above 7."""
    begin = time.process_time()
    assert patterns.largest_smooth(16777210) == 16669800 == 2**3 * 3**5 * 5**2 * 7**3
    assert patterns.factors(16777213) == [16777213]
    assert time.process_time() - begin < 1
