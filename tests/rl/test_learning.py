"""A learner against its parts by hand, and which losses count as outlying."""

import numpy as np
import pytest
from corridor import corridor, small

from collectives import rl, train
from collectives.rl.replay import Sample


def learner(**how):
    numbers, task = small(), corridor()
    network, optimizer = numbers.makers(task, 3)
    values = network()
    return rl.Learner(values, network(), optimizer(values), **{"target_every": 3, **how})


def sample(seed=0, count=8):
    rng = np.random.default_rng(seed)
    given = corridor().form.empty(count)
    for array in (given.observations, given.rewards, given.next_observations):
        array[...] = rng.standard_normal(array.shape)
    given.actions[:], given.discounts[:] = rng.integers(2, size=count), 0.9
    nowhere = np.zeros(count, np.int64)
    return Sample(given, rng.random(count).astype(np.float32), nowhere, nowhere)


def test_updates_by_hand():
    mine, plain = learner(), learner()
    net, target = plain.values, plain.target
    for step in range(1, 8):
        given = sample(step)
        found = mine.update(given)
        now = given.transitions
        best = net(now.next_observations).argmax(axis=1)
        wanted = now.rewards + 0.9 * target(now.next_observations)[np.arange(8), best]
        plain.opt.zero_grad()
        errors, _ = net.backward(now.observations, now.actions, wanted.astype(np.float32), given.weights)
        plain.opt.step()
        if step % 3 == 0:
            target.put(net.flat())
        np.testing.assert_allclose(found, np.abs(errors), rtol=1e-5)
        np.testing.assert_allclose(mine.values.flat(), net.flat(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(mine.target.flat(), target.flat(), rtol=1e-5, atol=1e-7)


def test_refused_losses_change_nothing():
    mine = learner(accept=lambda loss: False)
    before = mine.values.flat()
    mine.update(sample())
    np.testing.assert_array_equal(mine.values.flat(), before)
    assert (mine.updates, mine.refused) == (0, 1)


def test_a_loss_that_is_not_finite_ends_learning():
    mine, wrong = learner(), sample(1)
    mine.update(sample())
    before = mine.values.flat()
    wrong.transitions.rewards[3] = np.nan
    with pytest.raises(FloatingPointError, match="the loss of update 2 is nan: a reward is not finite, or the network"):
        mine.update(wrong)
    np.testing.assert_array_equal(mine.values.flat(), before)


def test_a_sample_whose_loss_is_refused_keeps_its_priorities_if_that_is_not_finite():
    mine, wrong = learner(accept=rl.Outliers(patience=0)), sample()
    wrong.transitions.rewards[3] = np.inf
    assert mine.update(wrong) is None
    assert (mine.updates, mine.refused) == (0, 1)
    memory = rl.Memory(corridor(), small(prioritised=True, start=8, batch=8), 0, 0)
    memory.add(wrong.transitions, np.arange(8.0), 8)
    masses = memory.replay.masses()
    memory.draw()
    memory.update(None)
    assert memory.waiting == 0
    np.testing.assert_array_equal(memory.replay.masses(), masses)


def test_the_gradients_norm_is_bounded():
    free, bounded = learner(), learner(clip=1e-3)
    for each in (free, bounded):
        each.opt = train.SGD(each.values.net.parameters(), lr=1.0)
    before = free.values.flat()
    free.update(sample())
    bounded.update(sample())
    assert np.linalg.norm(free.values.flat() - before) > 0.01
    np.testing.assert_allclose(np.linalg.norm(bounded.values.flat() - before), 1e-3, rtol=1e-3)


def test_outliers_against_a_list():
    """Mean and deviation of all losses so far, with weights that fall by the factor `decay`."""
    rng = np.random.default_rng(0)
    losses = rng.exponential(1.0, 300)
    losses[::50] *= 20
    outliers, seen, refused = rl.Outliers(2.0, decay=0.95, patience=10), [], 0
    for loss in losses:
        weights = 0.95 ** np.arange(len(seen))[::-1]
        accepted = outliers(loss)
        if len(seen) < 10:
            assert accepted
        else:
            mean = np.average(seen, weights=weights)
            deviation = np.sqrt(np.average((np.array(seen) - mean) ** 2, weights=weights))
            assert accepted == (loss <= mean + 2 * deviation)
            refused += not accepted
        seen.append(loss)
    assert 0 < refused < 50
    copy = rl.Outliers(2.0, decay=0.95, patience=10)
    copy.load_state_dict(outliers.state_dict())
    assert copy.limit == outliers.limit
    with pytest.raises(ValueError, match="deviations"):
        rl.Outliers(0)
    with pytest.raises(ValueError, match="decay"):
        rl.Outliers(decay=1.0)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), np.float32("nan")])
@pytest.mark.parametrize("place", [0, 5, 30])
def test_losses_that_are_not_finite_are_refused_and_not_counted(wrong, place):
    losses = np.random.default_rng(1).random(60)
    losses[40] = 100.0
    usual, disturbed = (rl.Outliers(4.0, patience=10) for _ in range(2))
    for number, loss in enumerate(losses):
        if number == place:
            assert not disturbed(wrong)
        assert disturbed(loss) == usual(loss) == (number != 40)
    assert disturbed.state_dict() == usual.state_dict()
