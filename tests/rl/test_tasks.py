"""Environments of Gymnasium, and the games of ALE as stacked frames."""

import numpy as np
import pytest

from collectives import rl, train
from collectives.rl import tasks
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


@pytest.mark.parametrize("side", [80, 40])
def test_pixels_are_means_of_tiles(side):
    frame = np.random.default_rng(0).integers(0, 256, (210, 160), np.uint8)
    tile = 160 // side
    found = tasks._small(frame, side)
    assert found.dtype == np.uint8
    for y, x in ((0, 0), (3, 7), (side - 1, side - 1)):
        pixels = frame[34 + tile * y : 34 + tile * (y + 1), tile * x : tile * (x + 1)]
        assert found[y, x] == int(pixels.mean())


def test_some_actions_of_pong():
    """The same game by the actions' own numbers and by their numbers among those that are used."""
    whole, some = rl.task("ALE/Pong-v5", side=40), rl.task("ALE/Pong-v5", side=40, actions=(0, 3, 2))
    assert (whole.actions, some.actions, some.form) == (6, 3, rl.Form((4, 40, 40), "|u1"))
    one, other = whole.make(), some.make()
    np.testing.assert_array_equal(one.reset(seed=5)[0], other.reset(seed=5)[0])
    rng = np.random.default_rng(0)
    for action in rng.integers(3, size=100).tolist():
        found, wanted = other.step(action), one.step((0, 3, 2)[action])
        np.testing.assert_array_equal(found[0], wanted[0])
        assert found[1:4] == wanted[1:4]
    for env in (one, other):
        env.close()


@pytest.mark.parametrize("actions", [(0, 6), (1, 1), (-1,)])
def test_actions_that_are_not_there(actions):
    with pytest.raises(ValueError, match="different numbers below 6"):
        rl.task("ALE/Pong-v5", actions=actions)


@pytest.mark.parametrize(("name", "text"), [("Nothing-v0", "no environment"), ("Pendulum-v1", "actions must be")])
def test_other_environments(name, text):
    with pytest.raises(ValueError, match=text):
        rl.task(name)
