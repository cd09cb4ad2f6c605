"""Samples of the text that comes with Python."""

import numpy as np
import pytest

from collectives import train


def test_samples_are_the_text_in_order():
    text = train.characters(16, limit=1000)
    assert text.x.shape == text.y.shape == (62, 16)
    letters = "".join(text.alphabet[code] for code in text.x.ravel())
    assert "statement" in letters
    assert len(set(text.alphabet)) == len(text.alphabet) == text.x.max() + 1
    np.testing.assert_array_equal(text.x.ravel()[1:], text.y.ravel()[:-1])
    again = train.characters(100, limit=1000)
    np.testing.assert_array_equal(again.x.ravel(), text.x.ravel()[:900])


def test_contexts_that_do_not_fit():
    assert len(train.characters(99, limit=100).x) == 1
    for context in (0, -1, 100):
        with pytest.raises(ValueError, match=f"context must be from 1 to 99, not {context}"):
            train.characters(context, limit=100)
