"""What values of actions are learnt from: double Q-learning's targets, and the gradient of the loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .transitions import Transitions

Array = NDArray[Any]


def double_q(transitions: Transitions, online: Array, target: Array) -> Array:
    """The targets ``r + discount Q_target(s', argmax_a Q_online(s', a))`` (van Hasselt et al. 2016, eq. 4).

    `online` and `target` are the two networks' values of the next observations: (transitions, actions).
    """
    best = online.argmax(axis=1)
    values = np.take_along_axis(target, best[:, None], axis=1)[:, 0]
    return transitions.rewards + transitions.discounts * values


class Gradient(NamedTuple):
    """``errors``: the targets' distance, ``Q(s, a) - target``; ``grad``: the loss's gradient with respect to Q."""

    errors: Array
    grad: Array
    loss: float


def huber(values: Array, actions: Array, targets: Array, weights: Array) -> Gradient:
    """The mean of the weighted Huber losses of the actions that were taken, and its gradient.

    The Huber loss of an error e is e^2 / 2 up to 1, and |e| - 1/2 above: DQN's errors clipped to [-1, 1] (Mnih et al.
    2015, methods).
    """
    rows = np.arange(len(actions))
    errors = values[rows, actions] - targets
    grad = np.zeros_like(values)
    grad[rows, actions] = weights * np.clip(errors, -1, 1) / len(actions)
    size = np.abs(errors)
    loss = float(np.mean(weights * np.where(size <= 1, size * size / 2, size - 0.5)))
    return Gradient(errors, grad, loss)
