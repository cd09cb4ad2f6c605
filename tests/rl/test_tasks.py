"""Environments of Gymnasium, and the games of ALE as stacked frames."""

import numpy as np
import pytest

from collectives import rl, train
from collectives.rl.networks import NumpyValues


def test_cartpole():
    task = rl.task("CartPole-v1")
    assert (task.form, task.actions, task.threshold) == (rl.Form((4,), "<f4"), 2, 475.0)
    values = NumpyValues(rl.perceptron((4,), 2, rng=np.random.default_rng(0)))
    actor = rl.Actor(task, values, train.Random(0, "actor", 0), 3, 0.99, lambda steps: 1.0)
    found = actor.play(500)
    lengths = np.array(actor.returns)
    assert 10 < lengths.mean() < 50  # of a random player
    assert found.rows == 500 - min(2, 500 - lengths.sum())
    assert (found.discounts == 0).sum() == 3 * len(lengths)
    again = rl.Actor(task, values, train.Random(0, "actor", 0), 3, 0.99, lambda steps: 1.0).play(500)
    np.testing.assert_array_equal(found.observations, again.observations)


def test_greedy_episodes_of_one_seed_are_alike():
    task = rl.task("CartPole-v1")
    values = NumpyValues(rl.perceptron((4,), 2, rng=np.random.default_rng(0)))
    one, other = (rl.evaluate(task, values, 6, seed) for seed in (1, 2))
    assert one == rl.evaluate(task, values, 6, 1) != other
    assert len(set(one)) > 1


def test_frames_of_pong():
    task = rl.task("ALE/Pong-v5")
    assert task.form == rl.Form((4, 80, 80), "|u1")
    assert (task.actions, task.learnt(-3.0), task.learnt(0.0)) == (6, -1.0, 0.0)
    env = task.make()
    first, _ = env.reset(seed=3)
    assert all((frame == first[0]).all() for frame in first)
    seen, total = [first], 0.0
    for step in range(200):
        observation, reward, *_ = env.step(step % 6)
        np.testing.assert_array_equal(observation[:-1], seen[-1][1:])
        seen.append(observation)
        total += reward
    env.close()
    assert total <= -2  # the other player has scored
    assert len({observation.tobytes() for observation in seen}) > 150
    net = rl.convolutional(task.form.shape, task.actions, rng=np.random.default_rng(0), hidden=16)
    assert net(np.stack(seen[:2])).shape == (2, 6)


@pytest.mark.parametrize(("name", "text"), [("Nothing-v0", "no environment"), ("Pendulum-v1", "actions must be")])
def test_other_environments(name, text):
    with pytest.raises(ValueError, match=text):
        rl.task(name)
