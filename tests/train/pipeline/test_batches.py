"""Fingerprints by which ranks notice that their batches differ."""

import numpy as np
import pytest

from collectives.train.pipeline.batches import MicroBatches, fingerprint

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("shape", [(1,), (256,), (256, 16), (7, 2, 3)])
def test_every_element_of_a_short_array_counts(shape):
    array = RNG.standard_normal(shape)
    own = fingerprint(array)
    assert own == fingerprint(array.copy()) != 0
    for place in np.ndindex(array.shape):
        other = array.copy()
        other[place] += 1
        assert fingerprint(other) != own


@pytest.mark.parametrize("shape", [(100000,), (64, 3, 32, 32), (4096, 100)])
def test_another_order_of_a_long_array_is_noticed(shape):
    array = RNG.standard_normal(shape)
    assert fingerprint(array[::-1]) != fingerprint(array) == fingerprint(np.asfortranarray(array))


def test_arrays_without_elements_or_of_objects():
    assert fingerprint(np.zeros((0, 3))) == fingerprint([]) == 1
    assert fingerprint(np.array([None, {}])) == 0
    assert fingerprint([1, 2]) == fingerprint(np.array([1, 2])) != fingerprint([2, 1])


def test_inputs_that_are_not_read_have_none():
    batch = MicroBatches((np.ones((3, 2)), np.zeros((3, 1))), np.arange(3), 2, lambda array, a, b: array[a:b])
    labels, first, second = batch.prints({-2})
    assert (labels, first, second) == (fingerprint(np.arange(3)), 0, fingerprint(np.zeros((3, 1))))
