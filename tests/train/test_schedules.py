"""Learning rates as functions of samples, against their formulas."""

import math

import numpy as np
import pytest

from collectives import train
from collectives.train.optim.schedules import Constant, Cosine, Steps, Warmup, scaled


def test_scaling_rules():
    assert scaled(0.1, 16) == pytest.approx(1.6)
    assert scaled(0.1, 16, "sqrt") == pytest.approx(0.4)
    assert scaled(0.1, 16, "none") == 0.1
    with pytest.raises(ValueError, match="linear, sqrt, none"):
        scaled(0.1, 2, "cubic")
    with pytest.raises(ValueError, match="factor must be positive"):
        scaled(0.1, 0)


def test_warm_up_goes_to_the_first_rate_of_the_next_schedule():
    schedule = Warmup(Cosine(0.4, 100), samples=10, start=0.1)
    assert [schedule(n) for n in (0, 5, 10)] == pytest.approx([0.1, 0.25, 0.4])
    assert schedule(60) == pytest.approx(0.2)
    assert schedule(110) == schedule(1000) == 0.0
    assert Warmup(0.4, 0)(0) == 0.4
    assert Warmup(0.4, 8)(2) == pytest.approx(0.1)


def test_constant_cosine_and_steps():
    assert Constant(0.3)(10**9) == 0.3
    assert Cosine(1.0, 4, final=0.5)(1) == pytest.approx(0.75 + 0.25 * math.cos(math.pi / 4))
    assert [Steps(1.0, (10, 20), 0.5)(n) for n in (0, 9, 10, 19, 20, 99)] == [1, 1, 0.5, 0.5, 0.25, 0.25]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Constant(-1), "lr must not be negative"),
        (lambda: Constant(float("nan")), "lr must not be negative"),
        (lambda: Warmup(-1.0, 5), "then must not be negative"),
        (lambda: Warmup(1.0, -5), "samples must not be negative"),
        (lambda: Cosine(1.0, 0), "samples must be positive"),
        (lambda: Steps(1.0, (3, 2)), "at must be ascending"),
    ],
)
def test_arguments_that_make_no_sense(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_the_rate_of_an_optimizer_is_set():
    opt = train.SGD([train.Parameter(np.ones(1), "w")], 0.1)
    train.set_lr(opt, 0.25)
    assert train.get_lr(opt) == opt.lr == 0.25
    opt.parameters[0].grad[:] = 1
    opt.step()
    assert opt.parameters[0].data[0] == 0.75
    with pytest.raises(ValueError, match="lr must not be negative"):
        train.set_lr(opt, -1)
    for wrong in (train.set_lr, lambda opt, lr: train.get_lr(opt)):
        with pytest.raises(TypeError, match="object has no learning rate"):
            wrong(object(), 0.1)
