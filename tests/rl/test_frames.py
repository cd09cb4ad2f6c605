"""Frames kept once, against lists that keep them all."""

import numpy as np
import pytest

from collectives.rl.frames import Pool, apart


def frames_of(numbers):
    """Frames that are told apart by a number."""
    return np.asarray(numbers, np.uint8)[:, None, None] + np.arange(6, dtype=np.uint8).reshape(2, 3)


def test_apart():
    frames = frames_of([7, 3, 7, 9, 3])
    different, numbers = apart(frames)
    np.testing.assert_array_equal(different, frames_of([7, 3, 9]))
    assert numbers.tolist() == [0, 1, 0, 2, 1]
    empty, none = apart(frames[:0])
    assert (empty.shape, none.shape) == ((0, 2, 3), (0,))


def test_a_pool_against_a_list():
    """Blocks of frames come and the oldest go, in turn; all that are in use stay what they were."""
    rng, pool, blocks = np.random.default_rng(0), Pool(60, (2, 3), "|u1"), []
    for _ in range(300):
        while blocks and sum(len(numbers) for numbers, _ in blocks) > 40:
            pool.drop(blocks.pop(0)[0])
        wanted = rng.integers(0, 30, rng.integers(0, 20))
        blocks.append((pool.add(frames_of(wanted)), wanted))
        for numbers, contents in blocks:
            np.testing.assert_array_equal(pool.take(numbers), frames_of(contents))
        held = {int(number) for numbers, _ in blocks for number in numbers}
        assert len(pool) == len(held) <= 60


def test_neighbours_share_frames():
    """Stacks of 4 of a game, one added at a time: the pool has as many frames as the game."""
    pool = Pool(400, (2, 3), "|u1")
    kept = [pool.add(frames_of(range(step, step + 4))) for step in range(50)]
    assert len(pool) == 53
    for numbers in kept[:20]:
        pool.drop(numbers)
    assert len(pool) == 33
    np.testing.assert_array_equal(pool.take(kept[20]), frames_of(range(20, 24)))
    pool.clear()
    assert len(pool) == 0


def test_a_frame_that_has_gone_is_kept_anew():
    pool = Pool(4, (2, 3), "|u1")
    pool.drop(pool.add(frames_of([1, 2])))
    other = pool.add(frames_of([5]))
    again = pool.add(frames_of([1, 2, 5]))
    np.testing.assert_array_equal(pool.take(again), frames_of([1, 2, 5]))
    np.testing.assert_array_equal(pool.take(other), frames_of([5]))
    assert len(pool) == 3


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_numbers_of_any_shape(rows):
    pool = Pool(20, (2, 3), "|u1")
    numbers = pool.add(frames_of(range(rows * 2))).reshape(rows, 2)
    assert pool.take(numbers).shape == (rows, 2, 2, 3)
