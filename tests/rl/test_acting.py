"""Actors and evaluation, in a corridor whose best actions are known."""

import numpy as np
import pytest
from corridor import LENGTH, LONGEST, Corridor, corridor

from collectives import rl, train
from collectives.rl.acting import priorities
from collectives.rl.transitions import Transitions


class Fixed:
    """Values that always prefer one action."""

    def __init__(self, action):
        self.row = np.eye(2, dtype=np.float32)[action]

    def __call__(self, observations):
        return np.tile(self.row, (len(observations), 1))


def actor(values, epsilon=0.0, n=1, seed=0):
    return rl.Actor(corridor(), values, train.Random(seed, "actor", 0), n, 0.5, lambda steps: epsilon)


def test_going_right_ends_with_a_reward():
    player = actor(Fixed(1))
    found = player.play(40)
    assert found.rows == player.steps == 40
    assert (found.actions == 1).all()
    np.testing.assert_allclose(found.next_observations[:, 0] - found.observations[:, 0], 1 / LENGTH, rtol=1e-5)
    ends = found.next_observations[:, 0] == 1
    assert ends.sum() == len(player.returns) >= 6
    np.testing.assert_array_equal(found.rewards, ends)
    np.testing.assert_array_equal(found.discounts, np.where(ends, 0, 0.5).astype(np.float32))


def test_episodes_that_are_cut_off_keep_a_value():
    player = actor(Fixed(0))
    found = player.play(2 * LONGEST)
    assert player.returns == [0.0, 0.0]
    assert (found.discounts == 0.5).all()


def test_epsilon_is_the_part_of_random_actions():
    player = rl.Actor(
        corridor(), Fixed(0), train.Random(0, "actor", 0), 1, 0.9, lambda steps: 0.6 if steps < 4000 else 0.0
    )
    assert player.play(4000).actions.mean() == pytest.approx(0.3, abs=0.03)
    assert player.play(100).actions.sum() == 0


def test_several_environments_in_turn():
    """Each has an epsilon and episodes of its own; the network is asked once for those that do not act at random."""
    asked = []

    class Counted(Fixed):
        def __call__(self, observations):
            asked.append(len(observations))
            return super().__call__(observations)

    chances = [lambda steps: 0.0, lambda steps: 1.0, lambda steps: 0.0]
    player = rl.Actor(corridor(), Counted(0), train.Random(0, "actor", 0), 1, 0.5, *chances)
    found = player.play(3 * LONGEST)
    assert player.steps == found.rows == 3 * LONGEST
    assert asked == [2] * LONGEST
    rows = [Transitions(*(array[place::3] for array in found)) for place in range(3)]  # n = 1: one for each step
    assert [bool(part.actions.any()) for part in rows] == [False, True, False]
    for part in rows:
        moved = part.next_observations[:, 0] - part.observations[:, 0]
        assert (moved[part.actions == 1] > 0).all()
        assert (moved[part.actions == 0] <= 0).all()
        joined = part.next_observations[:-1, 0] == part.observations[1:, 0]
        assert (joined | (part.discounts[:-1] == 0)).all()  # the next step goes on where the last one has led
    assert player.returns.count(0.0) >= 2
    assert player.play(6).rows == 6
    state = player.give_up(), player.state_dict()
    assert (state[0].rows, state[1]["steps"]) == (0, 3 * LONGEST + 6)


def test_what_is_given_up_is_not_lost():
    player = actor(Fixed(0), n=3)
    found = [player.play(10), player.give_up()]
    assert [part.rows for part in found] == [8, 2]
    np.testing.assert_allclose(found[1].discounts, [0.25, 0.5])
    assert player.give_up().rows == 0
    assert player.play(1).rows == 0  # of a new episode


def test_a_state_goes_on_alike():
    first, second = actor(Fixed(0), 0.5), actor(Fixed(0), 0.5, seed=0)
    first.play(30)
    with pytest.raises(ValueError, match="between episodes"):
        first.state_dict()
    first.give_up()
    second.load_state_dict(first.state_dict())
    for one, other in zip(first.play(50), second.play(50), strict=True):
        np.testing.assert_array_equal(one, other)
    assert first.returns == second.returns


def test_priorities_by_hand():
    found = actor(Fixed(1)).play(12)
    wanted = np.abs(1 - (found.rewards + found.discounts * 1))
    np.testing.assert_allclose(priorities(Fixed(1), found), wanted)


def test_evaluation():
    assert rl.evaluate(corridor(), Fixed(1), 7, seed=3) == [1.0] * 7
    assert rl.evaluate(corridor(), Fixed(0), 3, seed=3) == [0.0] * 3


@pytest.mark.parametrize("episodes", [1, 11])
def test_ranks_share_an_evaluation(episodes):
    class Undecided:
        """Goes right, but not from the leftmost place: the return depends on where an episode begins."""

        def __call__(self, observations):
            return np.stack([observations[:, 0] < 0.1, observations[:, 0] > 0.1], axis=1).astype(float)

    alone = rl.evaluate(corridor(), Undecided(), episodes, seed=5)
    found = train.threads.run(3, lambda comm: rl.evaluate(corridor(), Undecided(), episodes, 5, comm))
    assert found == [alone] * 3
    assert episodes == 1 or set(alone) == {0.0, 1.0}


class Sparing(Corridor):
    """The corridor, whose observations are all in the same memory."""

    array = None

    def _seen(self):
        if self.array is None:
            self.array = np.empty(2, np.float32)
        self.array[:] = super()._seen()
        return self.array


def test_an_environment_may_use_its_array_again():
    found = []
    for task in (corridor(), corridor()._replace(make=Sparing)):
        player = rl.Actor(task, Fixed(1), train.Random(0, "actor", 0), 3, 0.5, lambda steps: 0.3)
        found.append([player.play(50), player.give_up()])
        assert rl.evaluate(task, Fixed(1), 3, seed=0) == [1.0] * 3
    for ours, theirs in zip(*found, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)
