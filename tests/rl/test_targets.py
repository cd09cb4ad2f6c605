"""Targets and the gradient of the loss: cases by hand, and against differences."""

import numpy as np

from collectives.rl.targets import double_q, huber
from collectives.rl.transitions import Transitions


def test_double_q_by_hand():
    """The online network chooses the action, the target network says its value."""
    online = np.array([[1.0, 2.0], [5.0, 4.0], [0.0, 9.0]])
    target = np.array([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])
    nothing = np.zeros((3, 1))
    given = Transitions(nothing, np.zeros(3, int), np.array([1.0, 2.0, 3.0]), nothing, np.array([0.9, 0.5, 0.0]))
    np.testing.assert_allclose(double_q(given, online, target), [1 + 0.9 * 20, 2 + 0.5 * 30, 3])


def test_huber_by_hand():
    values = np.array([[1.0, 7.0], [2.0, 3.0]])
    found = huber(values, np.array([0, 1]), np.array([0.5, 6.0]), np.array([1.0, 0.5]))
    np.testing.assert_allclose(found.errors, [0.5, -3.0])
    np.testing.assert_allclose(found.grad, [[0.25, 0], [0, -0.25]])
    assert found.loss == (0.125 + 0.5 * 2.5) / 2


def test_the_gradient_is_the_losses():
    rng = np.random.default_rng(0)
    values, targets, weights = 3 * rng.standard_normal((9, 3)), rng.standard_normal(9), rng.random(9)
    actions = rng.integers(3, size=9)
    grad = huber(values, actions, targets, weights).grad
    for place in np.ndindex(values.shape):
        moved = [values.copy(), values.copy()]
        for sign, each in zip((-1, 1), moved, strict=True):
            each[place] += sign * 1e-6
        low, high = (huber(each, actions, targets, weights).loss for each in moved)
        np.testing.assert_allclose(grad[place], (high - low) / 2e-6, atol=1e-8)
