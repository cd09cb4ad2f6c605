"""Replays against lists, and what they draw against the probabilities of the paper."""

import numpy as np
import pytest

from collectives.rl.replay import Prioritised, Storage, Uniform
from collectives.rl.transitions import Form, Transitions

FORM = Form((2,), "<f4")
STACKED = Form((3, 4, 2), "|u1")


def made(numbers):
    """Transitions that are told apart by their rewards."""
    numbers = np.asarray(numbers, np.float32)
    pairs = np.stack([numbers, -numbers], axis=1)
    return Transitions(pairs, numbers.astype(np.int32), numbers, pairs + 1, numbers / 100)


@pytest.mark.parametrize("capacity", [5, 8])
def test_the_newest_are_kept(capacity):
    storage, seen = Storage(capacity, FORM), []
    for start in range(0, 30, 3):
        storage.add(made(range(start, start + 3)))
        seen = [*seen, *range(start, start + 3)][-capacity:]
        for kept, wanted in zip(storage.ordered(), made(seen), strict=True):
            np.testing.assert_array_equal(kept, wanted)
        assert len(storage) == len(seen)


def played(steps, seed):
    """Transitions of two steps of an episode whose frames are random, in stacks of 3."""
    game = np.random.default_rng(seed).integers(0, 256, (steps + 4, 4, 2), np.uint8)
    found = STACKED.empty(steps)
    for row in range(steps):
        found.observations[row], found.next_observations[row] = game[row : row + 3], game[row + 2 : row + 5]
        found.actions[row], found.rewards[row], found.discounts[row] = row % 3, seed + row / 100, row % 2
    return found


@pytest.mark.parametrize("chunk", [1, 4, 9])
def test_frames_once_are_the_same_as_stacks(chunk):
    """A replay of frames beside a list of whole transitions, while old ones are overwritten; also one of its state."""
    storage, kept, taken = Storage(25, STACKED), [], set()
    for seed in range(8):
        episode = played(18, seed)
        for start in range(0, 18, chunk):
            part = Transitions(*(array[start : start + chunk] for array in episode))
            storage.add(part)
            kept = [*kept, *zip(*part, strict=True)][-25:]
            for found, wanted in zip(storage.ordered(), zip(*kept, strict=True), strict=True):
                np.testing.assert_array_equal(found, wanted)
            taken.add(len(storage._pool))
    assert max(taken) <= 25 + (4 * 4 if chunk < 3 else 4 * (25 // chunk + 3))
    other = Storage(25, STACKED)
    other.add(played(7, 99))
    other.load_state_dict(storage.state_dict())
    for again in (other, storage):
        again.add(played(5, 50))
    np.testing.assert_array_equal(other.serials, storage.serials)
    for found, wanted in zip(other.ordered(), storage.ordered(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert len(storage.state_dict()["frames"]) < 60  # of 25 transitions with 6 frames each


def test_other_forms_are_refused():
    storage = Storage(4, FORM)
    with pytest.raises(ValueError, match="at once"):
        storage.add(made(range(5)))
    with pytest.raises(ValueError, match="observations"):
        storage.add(made(range(3))._replace(observations=np.zeros((3, 5))))
    assert len(storage) == 0


def test_probabilities_and_weights():
    """Section 3.3 and 3.4 of Schaul et al. 2016, by hand: P(i) = p_i^a / sum, w_i = (N P(i))^-b / max w."""
    replay = Prioritised(8, FORM, alpha=0.5, floor=1e-12)
    priorities = np.array([1.0, 4.0, 9.0, 0.0, 16.0])
    replay.add(made(range(5)), priorities)
    probability = np.array([1, 2, 3, 0, 4]) / 10
    rng, count = np.random.default_rng(0), np.zeros(5)
    for _ in range(400):
        sample = replay.sample(50, rng, beta=0.7)
        count += np.bincount(sample.places, minlength=5)
        raw = (5 * probability[sample.places]) ** -0.7
        np.testing.assert_allclose(sample.weights, raw / raw.max(), rtol=1e-5)
        np.testing.assert_array_equal(sample.transitions.rewards, sample.places)
    np.testing.assert_allclose(count / count.sum(), probability, atol=2e-3)


class BruteForce:
    """A prioritised replay as a list of [number, priority], whose sums are made anew for each draw."""

    def __init__(self, capacity, alpha, floor):
        self.capacity, self.alpha, self.floor = capacity, alpha, floor
        self.kept = []  # the oldest first

    def add(self, numbers, priorities):
        self.kept = [*self.kept, *map(list, zip(numbers, priorities, strict=True))][-self.capacity :]

    def sample(self, count, rng, beta):
        """The numbers and the weights. Places are visited in the order in which the real replay has them."""
        places = sorted(self.kept, key=lambda pair: pair[0] % self.capacity)
        masses = [(priority + self.floor) ** self.alpha for _, priority in places]
        total, found = sum(masses), []
        for i, share in enumerate(rng.random(count)):
            wanted, passed, place = (i + share) * total / count, 0.0, 0
            while passed + masses[place] <= wanted:
                passed, place = passed + masses[place], place + 1
            found.append(place)
        weights = np.array([(len(places) * masses[place] / total) ** -beta for place in found])
        return [places[place][0] for place in found], weights / weights.max()

    def update(self, numbers, priorities):
        known = dict(zip(numbers, priorities, strict=True))  # of a number that is there twice, the last one counts
        for pair in self.kept:
            pair[1] = known.get(pair[0], pair[1])


@pytest.mark.parametrize("capacity", [7, 16])
def test_against_brute_force(capacity):
    """Transitions come, are drawn, and get new priorities, some of them after others have taken their places."""
    plan = np.random.default_rng(capacity)
    replay, plain = Prioritised(capacity, FORM, alpha=0.6, floor=0.01), BruteForce(capacity, 0.6, 0.01)
    first, late = 0, None
    for step in range(200):
        count = int(plan.integers(1, 5))
        numbers, priorities = range(first, first + count), plan.exponential(1.0, count)
        replay.add(made(numbers), priorities)
        plain.add(numbers, priorities)
        if late is not None:
            priorities = plan.exponential(1.0, 6)
            replay.update(late[0], priorities)
            plain.update(late[1], priorities)
        sample = replay.sample(6, np.random.default_rng(step), beta=0.4)
        drawn, weights = plain.sample(6, np.random.default_rng(step), beta=0.4)
        np.testing.assert_array_equal(sample.transitions.rewards, drawn)
        np.testing.assert_allclose(sample.weights, weights, rtol=1e-5)
        first, late = first + count, (sample, drawn)


def test_a_sample_is_stratified():
    """Each of the k equal ranges of the sum gives one transition, so the number of draws hardly varies."""
    replay = Prioritised(4, FORM, alpha=1.0, floor=1e-12)
    replay.add(made(range(4)), np.array([1.0, 2.0, 3.0, 4.0]))
    rng = np.random.default_rng(3)
    for _ in range(100):
        assert np.bincount(replay.sample(10, rng).places, minlength=4).tolist() == [1, 2, 3, 4]


def test_priorities_of_what_is_gone_are_left_out():
    replay = Prioritised(4, FORM, alpha=1.0, floor=0.5)
    replay.add(made(range(4)), np.ones(4))
    sample = replay.sample(4, np.random.default_rng(0))
    assert sorted(sample.places) == [0, 1, 2, 3]
    replay.add(made([10, 11]), np.array([7.0, 8.0]))  # in the places of 0 and 1
    replay.update(sample, 100.0 + sample.places)
    np.testing.assert_allclose(replay.masses(), [7.5, 8.5, 102.5, 103.5])


def test_without_priority_a_transition_gets_the_highest():
    replay = Prioritised(4, FORM, alpha=1.0, floor=0.25)
    replay.add(made([0]))
    replay.add(made([1]), np.array([6.0]))
    replay.add(made([2]))
    np.testing.assert_allclose(replay.masses(), [1.25, 6.25, 6.25, 0])


def test_uniform_draws_are_uniform():
    replay, rng = Uniform(10, FORM), np.random.default_rng(0)
    replay.add(made(range(7)))
    count = sum(np.bincount(replay.sample(100, rng).places, minlength=7) for _ in range(400))
    np.testing.assert_allclose(count / 40000, 1 / 7, atol=0.01)
    assert (replay.sample(5, rng).weights == 1).all()


@pytest.mark.parametrize("kind", [Uniform, Prioritised])
def test_a_state_goes_on_alike(kind):
    def ended(replay):
        rng, drawn = np.random.default_rng(1), []
        for start in range(20, 40, 4):
            replay.add(made(range(start, start + 4)))
            sample = replay.sample(6, rng)
            replay.update(sample, sample.transitions.rewards / 10)
            drawn.append(sample.transitions.rewards)
        return np.array(drawn)

    first, second = kind(16, FORM), kind(16, FORM)
    first.add(made(range(12)))
    first.add(made(range(12, 19)))
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(ended(first), ended(second))
    with pytest.raises(ValueError, match="replay for"):
        kind(15, FORM).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    "call",
    [
        lambda replay: replay.sample(3, np.random.default_rng(0)),
        lambda replay: replay.add(made(range(2)), np.ones(3)),
        lambda replay: replay.add(made(range(2)), -np.ones(2)),
        lambda replay: replay.add(made(range(2)), np.array([1, np.inf])),
        lambda replay: Prioritised(4, FORM, alpha=-1),
        lambda replay: Prioritised(4, FORM, floor=0),
        lambda replay: Prioritised(0, FORM),
    ],
)
def test_bad_input(call):
    replay = Prioritised(4, FORM)
    with pytest.raises(ValueError, match=r"."):
        call(replay)
    assert len(replay) == 0
