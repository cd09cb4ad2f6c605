import dataclasses

import pytest

from collectives import rl
from collectives.rl.options import given


def test_defaults_of_algorithms():
    dqn, apex = rl.settings("dqn", "none"), rl.settings("apex", "none", n=5)
    assert (dqn.n, dqn.prioritised) == (3, False)
    assert (apex.n, apex.prioritised) == (5, True)
    pong = rl.settings("apex", "ALE/Pong-v5", batch=16)
    assert (pong.hidden, pong.batch, pong.prioritised, pong.actions) == ((128,), 16, True, (0, 2, 3))
    assert rl.settings("apex", "ALE/Breakout-v5").actions == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0}, {"lr": -1.0}, {"lr": float("nan")}, {"ratio": 0.0}, {"library": "jax"}, {"hidden": ()},
        {"gamma": 2.0}, {"epsilon_base": 1.5}, {"start": 10, "batch": 20}, {"capacity": 20},
        {"start": 900, "max_steps": 800}, {"clip": 0.0}, {"batch": float("inf")},
        {"envs": 4}, {"envs": 0}, {"side": 84}, {"convolutions": (8, 4)}, {"convolutions": (8, 4, 0)},
    ],
)  # fmt: skip
def test_numbers_out_of_bounds(wrong):
    with pytest.raises(ValueError, match=r"must|ratio"):
        rl.settings("apex", "none", **wrong)


def test_unknown_names():
    with pytest.raises(ValueError, match="the algorithms are dqn, apex, gorila"):
        rl.settings("a3c", "none")
    with pytest.raises(TypeError, match="speed"):
        rl.settings("dqn", "none", speed=1)


def test_values_of_options():
    texts = ["lr=1e-3", "n=2", "dueling=false", "hidden=64,32", "clip=none", "library=torch"]
    found = given(texts)
    assert found == {"lr": 1e-3, "n": 2, "dueling": False, "hidden": (64, 32), "clip": None, "library": "torch"}
    assert dataclasses.asdict(rl.settings("dqn", "none", **{**found, "library": "numpy"}))["clip"] is None


@pytest.mark.parametrize("text", ["lr", "speed=1", "n=2.5", "dueling=yes", "hidden=64,", "n=none", "lr=none"])
def test_options_of_a_wrong_form(text):
    with pytest.raises(ValueError, match="--set"):
        given([text])


def test_replays_have_room_for_what_comes_at_once():
    numbers = rl.settings("apex", "none", capacity=200, start=64, chunk=40, envs=4, n=3)
    numbers.check_room(1, 40, 4)
    numbers.check_room(4, 42, 4)  # 50 in each
    with pytest.raises(ValueError, match="each of 4 replays has room for 50 transitions, not for the 51"):
        numbers.check_room(4, 43, 4)
    with pytest.raises(ValueError, match="capacity=200 the replay has room for 200 transitions, not for the 203"):
        numbers.check_room(1, 201)
