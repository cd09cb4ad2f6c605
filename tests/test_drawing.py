"""What pictures share: ticks on every axis, however short its range."""

import pytest

from collectives.drawing import even_ticks, log_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.3, 200, [1, 10, 100]),
        (0.9, 12, [1, 10]),
        (0.15, 0.9, [0.2, 0.5]),
        (11, 19, [12, 14, 16, 18]),
        (101, 102, [101, 101.2, 101.4, 101.6, 101.8, 102]),
    ],
)
def test_logarithmic_axes(low, high, ticks):
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_a_loss_that_diverges_has_few_ticks():
    assert log_ticks(1e-3, 1e300) == pytest.approx([10.0**i for i in range(-3, 301, 43)])
    assert log_ticks(2e307, 1.7e308) == pytest.approx([2e307, 5e307, 1e308])


def test_linear_axes():
    assert even_ticks(0, 41) == pytest.approx([0, 10, 20, 30, 40])
    assert even_ticks(0, 9.3e-5) == pytest.approx([0, 2e-5, 4e-5, 6e-5, 8e-5])
    for i in range(1, 1000):
        assert 2 <= len(even_ticks(i, 1.01 * i)) <= 6
        assert 2 <= len(log_ticks(i, 1.01 * i)) <= 6
