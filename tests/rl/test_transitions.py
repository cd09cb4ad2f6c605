"""Transitions over n steps against the definition, written out for whole episodes."""

import numpy as np
import pytest

from collectives.rl.transitions import Form, NStep


def by_definition(n, gamma, rewards, terminated):
    """Transitions of an episode whose observation number t is t, from the definition of the n-step return."""
    found = []
    for t in range(len(rewards)):
        end = min(t + n, len(rewards))
        total = sum(gamma ** (k - t) * rewards[k] for k in range(t, end))
        found.append((t, t % 3, total, end, 0.0 if terminated and end == len(rewards) else gamma ** (end - t)))
    return found


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 10])
@pytest.mark.parametrize("ending", ["terminated", "truncated", "both", "cut"])
def test_episodes(n, length, ending):
    rng = np.random.default_rng(length)
    assembler = NStep(n, 0.9)
    for _ in range(2):  # the second episode knows nothing of the first one
        rewards, found = rng.standard_normal(length), []
        for t in range(length):
            last = t == length - 1 and ending != "cut"
            ends = (last and ending in ("terminated", "both"), last and ending in ("truncated", "both"))
            found += assembler.push(t, t % 3, rewards[t], t + 1, *ends)
            assert len(found) == (length if last else max(0, t + 2 - n))
        if ending == "cut":
            found += assembler.cut(length)
        wanted = by_definition(n, 0.9, rewards, ending in ("terminated", "both"))
        np.testing.assert_allclose(found, wanted)


def test_three_steps_by_hand():
    assembler = NStep(2, 0.5)
    assert assembler.push("a", 1, 8.0, "b", False, False) == []
    assert assembler.push("b", 0, 4.0, "c", False, False) == [("a", 1, 10.0, "c", 0.25)]
    assert assembler.push("c", 1, 2.0, "d", True, False) == [("b", 0, 5.0, "d", 0.0), ("c", 1, 2.0, "d", 0.0)]


def test_joined():
    form = Form((2,), "|u1")
    made = form.joined([([1, 2], 3, 0.5, [4, 5], 0.25), ([6, 7], 8, 1.5, [9, 10], 0.0)])
    assert made.rows == 2
    assert made.next_observations.tolist() == [[4, 5], [9, 10]]
    assert made.rewards.dtype == np.float32
    assert form.nbytes == 2 + 4 + 4 + 2 + 4
    assert form.joined([]).rows == 0


@pytest.mark.parametrize(("n", "gamma"), [(0, 0.9), (1, -0.1), (1, 1.1), (1, np.nan)])
def test_bad_input(n, gamma):
    with pytest.raises(ValueError, match="must be"):
        NStep(n, gamma)
